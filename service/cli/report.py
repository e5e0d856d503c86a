"""The commands `report` and `compare`, and how sweeps and fleets end: report, last line and exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_MACHINE,
    Json,
    bad_input,
    installing,
    print_result,
    report_extra_needed,
    terminal,
)

if TYPE_CHECKING:
    from rich.console import Console

app, compare_app = typer.Typer(), typer.Typer()


def conclude(folder: Path, console: Console) -> bool:
    """Write and print the report, and one JSON line last; returns whether the sweep is valid.

    Raises RowsError without rows, and ModuleNotFoundError without the packages of the extra `report`.
    """
    from loadtests.report.findings import Findings
    from loadtests.report.report_files import print_findings, write_report
    from loadtests.report.results import read_results

    findings = Findings(read_results(folder))
    headline = write_report(findings)
    print_findings(findings, console)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    last_line(folder, headline, bool(headline["valid"]))
    return bool(headline["valid"])


@app.command(epilog="Example: launchbound report results/20261127T120000Z-95b86229")
def report(
    folders: Annotated[list[Path], typer.Argument(help="A results folder of `sweep`, or several.")],
    out: Annotated[
        Path | None, typer.Option(help="Of several folders: output folder; default results/<UTC>-runs.")
    ] = None,
    _json: Json = False,
) -> None:
    """Write a folder's report again from its rows, its gates checked anew; of several runs, one page.

    Exit codes: 0 valid, 1 a check of one failed or a sweep is incomplete, 2 bad input, 4 disk full.
    """
    from loadtests.fleet.run import is_fleet
    from loadtests.run.folder import DiskFull, disk_full_named, results_path
    from loadtests.run.rows import RowsError
    from loadtests.run.series import is_series

    folder = folders[0]
    picture: Callable[[Path], bool] | None = None
    if len(folders) > 1:
        folder = out or results_path("runs")
        picture = partial(_picture_of_several, folders)
    elif out:
        bad_input("--out belongs to several folders: the report of one is written into it")
    elif is_fleet(folder):
        picture = picture_of_fleet
    elif is_series(folder):
        picture = picture_of_series
    try:
        with disk_full_named(folder), report_extra_needed():
            valid = picture(folder) if picture else conclude(folder, terminal())
    except (RowsError, FileNotFoundError) as error:
        bad_input(error)
    except DiskFull as error:
        typer.echo(f"launchbound: {error}", err=True)
        raise typer.Exit(EXIT_MACHINE) from None
    raise typer.Exit(0 if valid else EXIT_FAILED)


def _picture_of_several(folders: Sequence[Path], folder: Path) -> bool:
    """Write a page over several runs, print its headline and path; returns whether all are valid."""
    from loadtests.compare.page import PAGE_FILE, make_picture

    return _pictured(make_picture(folders, folder), folder, PAGE_FILE)


def picture_of_fleet(folder: Path) -> bool:
    """The same of a fleet; not valid where a task of it has no results.

    Raises RowsError where none has, and ModuleNotFoundError without the packages of the extra `report`.
    """
    from loadtests.compare.page import FLEET_PAGE_FILE, make_fleet_picture

    return _pictured(make_fleet_picture(folder), folder, FLEET_PAGE_FILE)


def picture_of_series(folder: Path) -> bool:
    """Print the table of models and batch sizes too; else as `picture_of_fleet`."""
    from loadtests.compare.page import PAGE_FILE, make_series_picture
    from loadtests.report.page import print_table

    table, found = make_series_picture(folder)
    print_table(table, terminal())
    return _pictured(found, folder, PAGE_FILE)


def _pictured(found: dict[str, Any], folder: Path, page: str) -> bool:
    typer.echo(found["headline"])
    typer.echo(f"page: {folder / page}")
    print_result({"path": str(folder), **found})
    return not found["absent"] and all(run["valid"] for run in found["runs"])


def last_line(folder: Path, headline: dict[str, Any] | None, valid: bool) -> None:
    print_result({"path": str(folder), "headline": headline, "valid": valid})


def without_report(folder: Path, failed: Sequence[str], why: Exception, valid: bool = False) -> int:
    """No report was made: print failed gates, the reason, and the JSON line; returns the exit code.

    `why` is that nothing was measured, or a package of the extra `report` that is not here.
    """
    for line in failed:
        typer.echo(line)
    if isinstance(why, ModuleNotFoundError):
        typer.echo(
            f"{why.name} is not installed here: the report is made later by `launchbound report {folder}`; "
            f"first {installing('report')}"
        )
    else:
        typer.echo(f"launchbound: {why}", err=True)
    last_line(folder, None, valid)
    return 0 if valid else EXIT_FAILED


def pictured(picture: Callable[[Path], bool], folder: Path, interrupted: bool) -> int:
    """Make the page over the runs of `folder` by `picture`; returns the exit code.

    Raises KeyboardInterrupt where an interruption has left none, so that nobody looks for a page.
    """
    from loadtests.run.rows import RowsError

    try:
        valid = picture(folder)
    except ModuleNotFoundError as error:
        return without_report(folder, [], error)
    except RowsError as error:
        if interrupted:
            raise KeyboardInterrupt from error
        return without_report(folder, [], error)
    if interrupted:
        return EXIT_INTERRUPTED
    return 0 if valid else EXIT_FAILED


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


@compare_app.command(epilog="Example: launchbound compare results/before results/after --fail-if-slower 5%")
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
    import msgspec

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
        print_comparison(found, terminal())
    if not markdown:
        typer.echo(msgspec.json.encode(document(found)))
    raise typer.Exit(found.exit_code)
