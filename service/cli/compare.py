"""The command that compares two builds by their sweeps: `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from service.cli.options import bad_input, report_extra_needed

app = typer.Typer()


def _share(text: str | None) -> float | None:
    """'5%' or '5' as 0.05; None for None. Ends the program for anything else."""
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < 10:
        bad_input(f"--fail-if-slower {text} is no share: give it in percent, as 5%")
    return value


@app.command(epilog="Example: launchbound compare results/before results/after --fail-if-slower 5%")
def compare(
    before: Annotated[Path, typer.Argument(help="A results folder of `sweep`, or a folder of several.")],
    after: Annotated[Path, typer.Argument(help="The same, of the build to be judged.")],
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            metavar="P%", help="Exit with 1 where a cell is slower by more, 3 where it is undecided."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare unlike runs too, and say what differs.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print nothing but the JSON document.")] = False,
) -> None:
    """Compare two builds cell by cell. Exit codes: 0 not slower, 1 slower, 2 bad input, 3 undecided."""
    with report_extra_needed():
        from loadtests.compare.builds import compare_builds, document, print_comparison
        from loadtests.compare.builds import markdown as as_markdown
    from loadtests.run.rows import RowsError

    allowed = _share(fail_if_slower)
    try:
        found = compare_builds(before, after, allowed=allowed, force=force)
    except RowsError as error:
        bad_input(error)
    if markdown:
        typer.echo(as_markdown(found))
    elif not as_json:
        print_comparison(found, Console())
    if not markdown:
        typer.echo(msgspec.json.encode(document(found)))
    raise typer.Exit(found.exit_code)
