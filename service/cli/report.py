"""The command that makes a sweep's report again, `report`, and what a sweep prints at its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from service.cli.options import EXIT_DISK_FULL, EXIT_FAILED, bad_input

app = typer.Typer()


def fail_without_rows(folder: Path, failed: Sequence[str], why: Exception) -> int:
    """A sweep that measured nothing: print failed gates, the reason, and the JSON line."""
    for line in failed:
        typer.echo(line)
    typer.echo(f"launchbound: {why}", err=True)
    last_line(folder, None, valid=False)
    return EXIT_FAILED


def last_line(folder: Path, headline: dict[str, Any] | None, valid: bool) -> None:
    """The one JSON document that ends the output."""
    typer.echo(json.dumps({"path": str(folder), "headline": headline, "valid": valid}))


def conclude(folder: Path, console: Console, failed: Sequence[str] = (), peers: Path | None = None) -> bool:
    """Print the table, the path of the report, and one JSON line last; returns whether the sweep is valid.

    Raises RowsError without rows.
    """
    headline: dict[str, Any] | None = None
    valid = not failed
    try:
        from loadtests.report.report_files import make_report, print_table
    except ImportError as error:
        for line in failed:
            console.print(line, soft_wrap=True)
        console.print(
            f"{error.name} is not installed here: the report is made later by `launchbound report {folder}`"
        )
    else:
        headline = make_report(folder, peers)
        valid = bool(headline["valid"])
        print_table(folder, console)
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    last_line(folder, headline, valid)
    return valid


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A results folder of `sweep`.")],
    peers: Annotated[
        Path | None, typer.Option(help="A folder of `peers`: adds what leaving PyTorch would buy.")
    ] = None,
) -> None:
    """Write report.html and report.md again from a folder's rows, and check its gates anew.

    Exit codes: 0 valid, 1 a check failed or the sweep is incomplete, 2 bad input, 3 disk full.
    """
    from loadtests.peers.results import PeersError
    from loadtests.run.disk import DiskFull, disk_full_named
    from loadtests.run.rows import RowsError

    try:
        with disk_full_named(folder):
            valid = conclude(folder, Console(), peers=peers)
    except (PeersError, RowsError, FileNotFoundError) as error:
        bad_input(error)
    except DiskFull as error:
        typer.echo(f"launchbound: {error}", err=True)
        raise typer.Exit(EXIT_DISK_FULL) from None
    raise typer.Exit(0 if valid else EXIT_FAILED)
