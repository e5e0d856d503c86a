"""The command that sweeps a module of the user's own, and writes the answer as a program: `run`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from models.naming import names_module
from service.cli.options import (
    BatchSizes,
    Device,
    Dtype,
    Json,
    Modes,
    Preset,
    bad_input,
    report_extra_needed,
)
from service.cli.sweep import PlanOptions, chosen_plans, sweep_own_service
from service.modes import MODES
from service.nvml import expected_device

app = typer.Typer()


@app.command(epilog="Example: launchbound run mypackage.ranker:build --batch-sizes 1,8,64")
def run(
    name: Annotated[
        str, typer.Argument(help="PACKAGE.MODULE:FACTORY or FILE.py:FACTORY, or a model as of serve.")
    ],
    batch_sizes: BatchSizes = None,
    dtype: Dtype = None,
    device: Device = None,
    modes: Modes = None,
    preset: Preset = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; default results/<UTC>-<commit>.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the answer as a program, one for each batch size.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a module of your own in every mode, and write the report.

    The same as a sweep of a service of this model. Exit codes: 0 valid, 1 a check failed, 2 bad input, 4 disk
    full, 130 interrupted.
    """
    from loadtests.run.folder import commit_name, results_path

    served = {key: value for key, value in (("device", device), ("dtype", dtype)) if value is not None}
    try:
        wanted = device or os.environ.get("LAUNCHBOUND_DEVICE", "auto")
        named = PlanOptions(preset=preset, modes=modes, batch_sizes=batch_sizes)
        plans = chosen_plans(named, expected_device(wanted), name)
    except ValueError as error:
        bad_input(error)
    if export is not None:
        _refuse_export(export, name, sum(one.document.starts for one in plans))
    folder = out or results_path(commit_name())
    code = sweep_own_service(plans, folder, served)
    if export is not None:
        # The result stays the last line of standard output.
        with report_extra_needed():
            invalid = "no program is written: the sweep is not valid"
            typer.echo(write_programs(export, folder, name) if code == 0 else invalid, err=True)
    raise typer.Exit(code)


def _refuse_export(export: Path, name: str, starts: int) -> None:
    """Exit as for bad input, before anything is measured, where no program could be written."""
    if not names_module(name):
        bad_input(f"--export writes the program of a module of your own, and {name} is none: leave it out")
    if starts > 1:
        bad_input("--export writes the answer of one sweep: leave it out, or take the preset quick")
    if not export.absolute().parent.is_dir():
        bad_input(f"there is no folder {export.absolute().parent} for --export: make it, or name another")


def write_programs(export: Path, folder: Path, name: str) -> str:
    """Write the mode to ship at each batch size of `folder` as a program; returns what was written.

    Of several batch sizes each has its own, named after `export`.
    """
    from loadtests.report.findings import Findings
    from loadtests.report.results import read_results
    from models.export import script_of

    results = read_results(folder)
    engine = results.run.engine
    answers = [verdict.shipped for verdict in Findings(results).main if verdict.shipped]
    written = list[Path]()
    for one in answers:
        mode, batch = MODES[one.cell.mode], one.cell.batch_size
        done = (mode.grad_mode, results.run.effect(mode), batch, engine["dtype"], one.latency.value)
        text = script_of(name, *done, engine["device"], engine["threads"], one.cell.size)
        path = export if len(answers) == 1 else export.with_stem(f"{export.stem}-b{batch}")
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return f"program: {', '.join(map(str, written))}" if written else "no program is written: no answer yet"
