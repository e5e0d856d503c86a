"""The commands that measure a service under load: `sweep` and `report`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from service.cli.options import (
    EXIT_FAILED,
    BatchSizes,
    Device,
    Dtype,
    Model,
    Modes,
    bad_input,
    flags,
    settings_from,
    split_list,
)

app = typer.Typer()


@app.command()
def sweep(
    url: Annotated[str | None, typer.Option(help="A running service; without it one is started.")] = None,
    preset: Annotated[str, typer.Option(help="quick, standard, full or gpu.")] = "quick",
    out: Annotated[Path | None, typer.Option(help="Results folder; default results/<UTC>-<commit>.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes orders, prompts and arrivals.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
    batch_sizes: BatchSizes = None,
) -> None:
    """Measure modes against batch sizes in rounds, and write the report."""
    from loadtests.plan.cells import PlanError
    from loadtests.plan.presets import Preset, describe, make_plan
    from loadtests.run.sweep import new_folder

    try:
        sizes = [int(size) for size in split_list(batch_sizes) or ()]
        plan = make_plan(cast(Preset, preset), seed, split_list(modes), sizes or None)
    except (PlanError, ValueError) as error:
        bad_input(error)
    if dry_run:
        typer.echo(describe(plan))
        return
    if url and (model or device or dtype):
        bad_input("--model, --device and --dtype belong to the service: leave them out where --url names one")
    folder = out or new_folder(remote=url is not None)
    folder.mkdir(parents=True, exist_ok=True)
    options = {"model": model, "device": device, "dtype": dtype}
    raise typer.Exit(_sweep(url, plan, folder, options))


def _sweep(url: str | None, plan: Any, folder: Path, options: dict[str, str | None]) -> int:  # noqa: ANN401
    from loadtests.plan.prompts import PromptError
    from loadtests.run.rows import RowsError
    from loadtests.run.sweep import SweepResult, run_sweep
    from loadtests.run.target import ModeFailed, TargetError
    from service.front.launch import LaunchError, launched

    console = Console()

    def run(at: str, settings: dict[str, Any]) -> SweepResult:
        return run_sweep(at, plan, folder, console=console, settings=settings)

    try:
        if url:
            result = run(url, {})
        else:
            served = {
                **options,
                "modes": ",".join(plan.modes),
                "batch_sizes": ",".join(map(str, plan.batch_sizes)),
            }
            settings_from(**served)
            with launched(flags(served), folder / "service.log") as own:
                result = run(own, {name: value for name, value in served.items() if value})
    except ModeFailed as error:
        return _fail_without_rows(folder, [], error)
    except (LaunchError, PromptError, TargetError) as error:
        bad_input(error)
    failed = [f"FAILED  {gate.name}: {gate.detail}" for gate in result.failed]
    try:
        _conclude(folder, console, failed)
    except RowsError as error:
        return _fail_without_rows(folder, failed, error)
    return result.exit_code


def _fail_without_rows(folder: Path, failed: Sequence[str], why: Exception) -> int:
    """A sweep that measured nothing: print failed gates, the reason, and the JSON line."""
    for line in failed:
        typer.echo(line)
    typer.echo(f"launchbound: {why}", err=True)
    _last_line(folder, None, valid=False)
    return EXIT_FAILED


def _last_line(folder: Path, headline: dict[str, Any] | None, valid: bool) -> None:
    typer.echo(json.dumps({"path": str(folder), "headline": headline, "valid": valid}))


def _conclude(folder: Path, console: Console, failed: Sequence[str] = (), peers: Path | None = None) -> None:
    """Print the table, the path of the report, and one JSON line last. Raises RowsError without rows."""
    headline: dict[str, Any] | None = None
    valid = not failed
    try:
        from loadtests.report.report_files import print_findings, write_report
        from loadtests.report.results import read_results
        from loadtests.report.verdict import Findings
    except ImportError as error:
        for line in failed:
            console.print(line, soft_wrap=True)
        console.print(
            f"{error.name} is not installed here: the report is made later by `launchbound report {folder}`"
        )
    else:
        findings = Findings(read_results(folder))
        headline = write_report(findings, peers)
        valid = bool(headline["valid"])
        print_findings(findings, console)
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    _last_line(folder, headline, valid)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="A results folder of `sweep`, or several.")],
    peers: Annotated[
        Path | None, typer.Option(help="A folder of `peers`: adds what leaving PyTorch would buy.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Of several folders: where the picture goes; default results/<UTC>-runs."),
    ] = None,
) -> None:
    """Write a folder's report again from its rows; of several folders, one page with all of them."""
    from loadtests.peers.results import PeersError
    from loadtests.run.rows import RowsError

    if len(folders) > 1 and peers:
        bad_input("--peers belongs to the report of one folder: name one")
    if len(folders) == 1 and out:
        bad_input("--out belongs to several folders: the report of one is written into it")
    try:
        if len(folders) > 1:
            _picture(folders, out)
        else:
            _conclude(folders[0], Console(), peers=peers)
    except (PeersError, RowsError, FileNotFoundError) as error:
        bad_input(error)


def _picture(folders: Sequence[Path], out: Path | None) -> None:
    """Several runs on one page. Prints its headline, its path, and one JSON line last."""
    from loadtests.side_by_side.files import PAGE_FILE, make_picture

    folder = out or Path("results") / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-runs"
    found = make_picture(folders, folder)
    typer.echo(found["headline"])
    typer.echo(f"page: {folder / PAGE_FILE}")
    typer.echo(json.dumps({"path": str(folder), **found}))
