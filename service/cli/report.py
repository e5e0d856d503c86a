"""The command that makes a report again, `report`, and what sweeps, series and fleets print of theirs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from service.cli.endings import last_line
from service.cli.options import EXIT_FAILED, EXIT_MACHINE, bad_input, report_extra_needed

if TYPE_CHECKING:
    from loadtests.plan.cells import Slo

app = typer.Typer()


def conclude(folder: Path, console: Console, peers: Path | None = None, slo: Slo | None = None) -> bool:
    """Write and print the report, and one JSON line last; returns whether the sweep is valid.

    `slo` judges the open-loop cells in place of the plan's objectives. Raises RowsError without rows, and
    ModuleNotFoundError without the packages of the extra `report`.
    """
    headline = reported(folder, console, peers, slo)
    last_line(folder, headline, bool(headline["valid"]))
    return bool(headline["valid"])


def reported(
    folder: Path, console: Console, peers: Path | None = None, slo: Slo | None = None
) -> dict[str, Any]:
    """Write the report of one sweep, print its table and its path; returns the headline. Raises as above."""
    from loadtests.report.findings import Findings
    from loadtests.report.report_files import write_report
    from loadtests.report.results import read_results
    from loadtests.report.terminal import print_findings

    findings = Findings(read_results(folder), slo)
    headline = write_report(findings, peers)
    print_findings(findings, console)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    return headline


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="A results folder of `sweep`, or several.")],
    peers: Annotated[
        Path | None, typer.Option(help="A folder of `peers`: adds what leaving PyTorch would buy.")
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="Judge open-loop cells by other objectives than the plan's: "
            "ttft=0.05,tpot=0.01,e2e=0.1,share=0.99 (seconds)."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Of several folders: where the picture goes; default results/<UTC>-runs."),
    ] = None,
) -> None:
    """Write a folder's report again from its rows, its gates checked anew; of several runs, one page.

    Exit codes: 0 valid, 1 a check of one failed or a sweep is incomplete, 2 bad input, 4 disk full.
    """
    from loadtests.fleet.plan import is_fleet
    from loadtests.peers.results import PeersError
    from loadtests.plan.cells import PlanError, parse_slo
    from loadtests.run.folder import DiskFull, disk_full_named
    from loadtests.run.rows import RowsError
    from loadtests.run.run_file import is_series

    of_fleet = len(folders) == 1 and is_fleet(folders[0])
    series = len(folders) == 1 and is_series(folders[0])
    several = len(folders) > 1
    if (several or series or of_fleet) and peers:
        bad_input("--peers belongs to the report of one sweep: name its folder")
    if (several or series or of_fleet) and slo:
        bad_input("--slo belongs to the report of one sweep: name its folder")
    if len(folders) == 1 and out:
        bad_input("--out belongs to several folders: the report of one is written into it")
    written = (out or _new_folder()) if several else folders[0]
    try:
        judged_by = parse_slo(slo) if slo else None
        with disk_full_named(written), report_extra_needed():
            if of_fleet:
                valid = picture_of_fleet(written)
            elif series:
                valid = picture_of_series(written)
            else:
                valid = (
                    _picture(folders, written) if several else conclude(written, Console(), peers, judged_by)
                )
    except (PeersError, PlanError, RowsError, FileNotFoundError) as error:
        bad_input(error)
    except DiskFull as error:
        typer.echo(f"launchbound: {error}", err=True)
        raise typer.Exit(EXIT_MACHINE) from None
    raise typer.Exit(0 if valid else EXIT_FAILED)


def _new_folder() -> Path:
    return Path("results") / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-runs"


def _picture(folders: Sequence[Path], folder: Path) -> bool:
    """Several runs on one page; headline, path and one JSON line are printed. Whether all are valid."""
    from loadtests.compare.page import PAGE_FILE, make_picture

    return _pictured(make_picture(folders, folder), folder, PAGE_FILE)


def picture_of_series(folder: Path) -> bool:
    """The same of a sweep in several precisions; not valid where one of them has no results.

    Raises RowsError where none has, and ModuleNotFoundError without the packages of the extra `report`.
    """
    from loadtests.compare.page import PAGE_FILE, make_series_picture

    return _pictured(make_series_picture(folder), folder, PAGE_FILE)


def picture_of_fleet(folder: Path) -> bool:
    """The same of a fleet; not valid where a task of it has no results. Raises as `picture_of_series`."""
    from loadtests.fleet.report import PAGE_FILE, make_fleet_report

    return _pictured(make_fleet_report(folder), folder, PAGE_FILE)


def _pictured(found: dict[str, Any], folder: Path, page: str) -> bool:
    typer.echo(found["headline"])
    typer.echo(f"page: {folder / page}")
    typer.echo(json.dumps({"path": str(folder), **found}))
    return not found["absent"] and all(run["valid"] for run in found["runs"])
