"""The command that measures a service under load: `sweep`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from models.naming import is_called
from service.cli.options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_MACHINE,
    BatchSizes,
    Device,
    Dtype,
    Json,
    Model,
    Modes,
    Preset,
    bad_input,
    ended_in_order,
    flags,
    of_a_part,
    print_result,
    settings_from,
    split_list,
    terminal,
)
from service.cli.report import conclude, last_line, picture_of_series, pictured, without_report
from service.nvml import expected_device

if TYPE_CHECKING:
    from rich.console import Console

    from loadtests.plan.cells import Plan
    from loadtests.plan.plan_file import PlanDocument
    from loadtests.run.series import Series
    from loadtests.run.sweep import SweepResult

app = typer.Typer()


@app.command(epilog="Example: launchbound sweep --preset standard --modes eager,inference_mode,compiled")
def sweep(
    url: Annotated[str | None, typer.Option(help="A running service; without it one is started.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan file (docs/sweeps.md).")] = None,
    preset: Preset = None,
    resume: Annotated[
        Path | None, typer.Option(help="A results folder whose sweep ended early: go on with it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; default results/<UTC>-<commit>.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes orders, prompts and arrivals; default 0.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
    batch_sizes: BatchSizes = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Load processes; default 1, or those of --resume.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure modes against batch sizes in rounds, and write the report.

    A plan of several starts or models is a series: a sweep of each start of the service, and a page over all.
    Options replace what the plan says. Exit codes: 0 valid, 1 a check failed, 2 bad input, 4 disk full, 130
    interrupted.
    """
    named = PlanOptions(plan, preset, seed, modes, batch_sizes)
    options = {"model": model, "device": device, "dtype": dtype}
    served = {name: value for name, value in options.items() if value is not None}
    try:
        wanted = device or os.environ.get("LAUNCHBOUND_DEVICE", "auto")
        own_model = model or os.environ.get("LAUNCHBOUND_MODEL")
        plans = chosen_plans(named, None if url else expected_device(wanted), own_model)
    except ValueError as error:
        bad_input(error)
    if resume is not None:
        if out or dry_run or served or named != PlanOptions():
            bad_input(
                "--resume goes on with its folder, plan and service: leave out all but --url and --workers"
            )
        raise typer.Exit(_resume(resume, url, workers))
    several = sum(one.document.starts for one in plans) > 1
    if several and url:
        typer.echo("this service is not started anew: its one start is measured, and intervals are of that")
        several = False
    if dry_run:
        from loadtests.plan.presets import describe, describe_series

        own = describe(plans[0].plan, plans[0].document.model)
        typer.echo(describe_series([one.document for one in plans]) if several else own)
        if as_json:
            import msgspec

            print_result({"plans": [msgspec.to_builtins(one.document) for one in plans]})
        return
    if url and served:
        bad_input("--model, --device and --dtype belong to the service: leave them out with --url")
    if several:
        raise typer.Exit(_begin_series(plans, out, served, workers or 1))
    raise typer.Exit(_begin(plans[0], url, out, served, workers or 1))


def sweep_own_service(plans: list[ChosenPlan], folder: Path, served: dict[str, str]) -> int:
    """Sweep a service of its own by each of `plans` into `folder`; returns the exit code."""
    if sum(one.document.starts for one in plans) > 1:
        return _begin_series(plans, folder, served, 1)
    return _begin(plans[0], None, folder, served, 1)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    file: Path | None = None
    preset: str | None = None
    seed: int | None = None
    modes: str | None = None
    batch_sizes: str | None = None


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """A plan with the document that it is made of; `overrides` are options that replaced what that said."""

    document: PlanDocument
    plan: Plan
    overrides: dict[str, Any]
    from_file: bool


def chosen_plans(
    named: PlanOptions, own_device: str | None = None, model: str | None = None
) -> list[ChosenPlan]:
    """By model the plan of a file or preset with the options over it; by default, of the preset `quick`.

    A given `model` is the only one. Where no modes are named they are those that a service serves by default,
    and in one of the sweep's own, on `own_device` ('cpu' or 'cuda'), those too that are worth the time.
    Raises PlanError where it cannot be run, and ValueError where an option cannot be read.
    """
    import msgspec

    from loadtests.plan.plan_file import plan_of, read_plan_file
    from loadtests.plan.presets import overridden, preset_documents
    from service.modes import default_modes, swept_modes

    if named.file is not None and named.preset is not None:
        raise ValueError("--plan and --preset both name a plan: leave one out")
    documents = read_plan_file(named.file) if named.file else preset_documents(named.preset or "quick")
    if model:
        documents = [msgspec.structs.replace(documents[0], model=model)]
    sizes = [int(size) for size in split_list(named.batch_sizes) or ()]
    found = []
    for written in documents:
        document = overridden(written, named.seed, split_list(named.modes), sizes or None)
        overrides = {
            name: getattr(document, name)
            for name in ("seed", "modes", "batch_sizes")
            if getattr(document, name) != getattr(written, name)
        }
        if document.modes is None:
            modes = swept_modes(own_device) if own_device else default_modes()
            document = msgspec.structs.replace(document, modes=modes)
        plan = plan_of(document)
        if document.model and is_called(document.model):
            plan = plan.of_calls()
        # The default modes by name: they may be others where the plan is read again.
        document = msgspec.structs.replace(document, modes=plan.modes)
        found.append(ChosenPlan(document, plan, overrides, named.file is not None))
    return found


def _begin(
    chosen: ChosenPlan, url: str | None, out: Path | None, options: dict[str, str], workers: int
) -> int:
    from loadtests.plan.plan_file import toml_of
    from loadtests.run.folder import commit_name, results_path
    from loadtests.run.resumption import service_environment
    from loadtests.run.sweep import Origin, run_sweep

    served: dict[str, str] = {}
    if not url:
        sizes = ",".join(map(str, chosen.plan.batch_sizes))
        own = {"model": chosen.document.model} if chosen.document.model else {}
        served = {**own, **options, "modes": ",".join(chosen.plan.modes), "batch_sizes": sizes}
        settings_from(**served)
    folder = out or results_path("remote" if url else commit_name())
    folder.mkdir(parents=True, exist_ok=True)
    origin = Origin(
        plan_text=toml_of(chosen.document),
        plan_from_file=chosen.from_file,
        overrides=chosen.overrides,
        service=None if url else {"options": served, "environment": service_environment()},
    )

    def work(console: Console) -> int:
        service = url or _own_service(served, folder)
        result = run_sweep(service, chosen.plan, folder, console=console, origin=origin, workers=workers)
        return _reported(folder, console, result)

    return _in_order(folder, work)


def _begin_series(plans: list[ChosenPlan], out: Path | None, options: dict[str, str], workers: int) -> int:
    from loadtests.run.folder import commit_name, results_path
    from loadtests.run.series import begin_series

    for one in plans:
        settings_from(**{"model": one.document.model, **options})
    folder = out or results_path(commit_name())

    def work(_: Console) -> int:
        begin_series(folder, [one.document for one in plans], options, workers)
        return _swept_series(folder)

    return _in_order(folder, work)


def _swept_series(folder: Path) -> int:
    """Sweep the starts that are left, until one fails, and make the page over all."""
    from loadtests.run.folder import locked
    from loadtests.run.series import left_of

    interrupted = done = False
    try:
        with locked(folder):
            series, left = left_of(folder)
            with of_a_part():
                done = all(_one_start(folder / name, series) for name in left)
    except KeyboardInterrupt:
        interrupted = True
    if not done:
        typer.echo(f"stopped, with what is measured kept: `launchbound sweep --resume {folder}` goes on")
    return pictured(picture_of_series, folder, interrupted)


def _one_start(folder: Path, series: Series) -> bool:
    """Whether the sweep of one start has measured all of its plan; else it has said why.

    Raises KeyboardInterrupt where it was interrupted, which has been reported.
    """
    from loadtests.plan.plan_file import plan_of
    from loadtests.run.run_file import RUN_FILE
    from loadtests.run.series import is_complete

    typer.echo(f"{folder.name}, one of {len(series.plans)} starts")
    try:
        if (folder / RUN_FILE).is_file():
            code = _resume(folder, None, None)
        else:
            document = series.plans[folder.name]
            chosen = ChosenPlan(document, plan_of(document), {}, from_file=True)
            code = _begin(chosen, None, folder, series.options, series.workers)
    except typer.Exit:
        return False
    if code == EXIT_MACHINE:
        raise typer.Exit(code)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return is_complete(folder)


def _resume(folder: Path, url: str | None, workers: int | None) -> int:
    from loadtests.run.rows import RowsError
    from loadtests.run.run_file import read_run
    from loadtests.run.series import is_series
    from loadtests.run.sweep import resume_sweep

    if is_series(folder):
        if url or workers:
            bad_input(f"the series of {folder} has services and workers: leave out --url and --workers")
        return _in_order(folder, lambda _: _swept_series(folder))
    try:
        run = read_run(folder)
    except RowsError as error:
        bad_input(error)
    if url and run.service is not None:
        bad_input(f"the sweep of {folder} started its own service, and does so again: leave out --url")
    service = (url or run.url) if run.service is None else _own_service(run.service["options"], folder)

    def work(console: Console) -> int:
        return _reported(folder, console, resume_sweep(service, folder, console=console, workers=workers))

    return _in_order(folder, work)


def _own_service(options: dict[str, str], folder: Path) -> AbstractContextManager[str]:
    from loadtests.run.target import Unreachable
    from service.front.launch import launched

    return launched(flags(options), folder / "service.log", lost=(Unreachable,))


def _in_order(folder: Path, work: Callable[[Console], int]) -> int:
    """The exit code of `work`, or of the error that ended it. A signal ends what it has started."""
    from loadtests.run.folder import DiskFull, disk_full_named
    from loadtests.run.rows import RowsError
    from loadtests.run.target import ModeFailed, TargetError
    from service.front.launch import LaunchError

    console = terminal()
    try:
        with ended_in_order(), disk_full_named(folder):
            return work(console)
    except ModeFailed as error:
        return without_report(folder, [], error)
    except LaunchError as error:
        bad_input(f"{error} (log: {folder / 'service.log'})")
    except (TargetError, RowsError) as error:
        bad_input(error)
    except DiskFull as error:
        typer.echo(f"launchbound: {error}", err=True)
        last_line(folder, None, valid=False)
        return EXIT_MACHINE


def _reported(folder: Path, console: Console, result: SweepResult) -> int:
    from loadtests.run.rows import RowsError
    from loadtests.run.run_file import INTERRUPTED

    failed = [f"FAILED  {gate.name}: {gate.detail}" for gate in result.failed]
    try:
        conclude(folder, console)
        code = EXIT_FAILED if failed else 0
    except ModuleNotFoundError as error:
        code = without_report(folder, failed, error, valid=not failed)
    except RowsError as error:
        code = without_report(folder, failed, error)
    return EXIT_INTERRUPTED if result.run.stopped_because == INTERRUPTED else code
