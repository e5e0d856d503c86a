"""The command that measures a service under load: `sweep`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from service.cli.endings import conclude_later, fail_without_rows, last_line, pictured
from service.cli.options import (
    EXIT_MACHINE,
    Advice,
    BatchSizes,
    Device,
    Dtype,
    Model,
    Modes,
    bad_input,
    flags,
    settings_from,
)
from service.cli.report import conclude, picture_of_series
from service.cli.series_run import measuring, printed
from service.cli.signals import ended_in_order

if TYPE_CHECKING:
    from loadtests.run.sweep import SweepResult
    from service.cli.sweep_plan import ChosenPlan

app = typer.Typer()


@app.command()
def sweep(
    url: Annotated[str | None, typer.Option(help="A running service; without it one is started.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan file (docs/sweeps.md).")] = None,
    preset: Annotated[
        str | None, typer.Option(help="quick (default), standard, full, gpu, saturation.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="A results folder whose sweep ended early: go on with it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; default results/<UTC>-<commit>.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes orders, prompts and arrivals; default 0.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    slo: Annotated[
        str | None,
        typer.Option(help="Limits in seconds, such as ttft=0.05,tpot=0.01,e2e=0.1,share=0.99."),
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="With --dry-run: show it as a plan file.")] = False,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
    batch_sizes: BatchSizes = None,
    advice: Advice = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Load processes; default 1, or those of --resume.")
    ] = None,
) -> None:
    """Measure modes against batch sizes in rounds, and write the report.

    Options replace what the plan says. Exit codes: 0 valid, 1 a check failed or the sweep was stopped, 2 bad
    input, 4 disk full.
    """
    from service.cli.sweep_plan import chosen_plan

    if toml and not dry_run:
        bad_input("--toml shows a plan: add --dry-run")
    try:
        chosen = chosen_plan(plan, preset, seed, modes, batch_sizes, slo, dtype)
    except ValueError as error:
        bad_input(error)
    options = {"model": model, "device": device, "dtype": dtype, "advice": advice}
    if resume is not None:
        if out or dry_run or any(options.values()):
            bad_input(
                "--resume goes on in its folder, with its service: "
                "leave out all but --url, --workers and the plan"
            )
        named = any(option is not None for option in (plan, preset, seed, modes, batch_sizes, slo))
        raise typer.Exit(_resume(resume, url, chosen if named else None, workers))
    if dry_run:
        _show(chosen, toml)
        return
    if url and (any(options.values()) or chosen.dtypes):
        bad_input(
            "--model, --device, --dtype, --advice and a plan's `dtypes` belong to the service: leave them "
            "out where --url names one; sweep one of each precision, and show them together by `report A B C`"
        )
    if len(chosen.dtypes) > 1:
        raise typer.Exit(begin(chosen, out, options, workers or 1))
    options |= {"dtype": next(iter(chosen.dtypes), dtype)}
    raise typer.Exit(_begin(url, chosen, out, options, workers))


def _show(chosen: ChosenPlan, toml: bool) -> None:
    from loadtests.plan.plan_file import toml_of
    from loadtests.plan.presets import describe

    text = toml_of(chosen.document) if toml else describe(chosen.plan) + described(chosen)
    typer.echo(text, nl=not toml)


def _begin(
    url: str | None,
    chosen: ChosenPlan,
    out: Path | None,
    options: dict[str, str | None],
    workers: int | None,
) -> int:
    from loadtests.plan.plan_file import toml_of
    from loadtests.run.resumption import service_environment
    from loadtests.run.sweep import new_folder, run_sweep

    plan = chosen.plan
    sizes = ",".join(map(str, plan.batch_sizes))
    given = {**options, "modes": ",".join(plan.ladder_modes), "batch_sizes": sizes}
    served = {} if url else {name: value for name, value in given.items() if value is not None}
    if not url:
        settings_from(**served)
    folder = out or new_folder(remote=url is not None)
    folder.mkdir(parents=True, exist_ok=True)

    def measure(console: Console) -> SweepResult:
        return run_sweep(
            url or _own(served, folder),
            plan,
            folder,
            console=console,
            settings=dict(served),
            started_with=None if url else {"options": served, "environment": service_environment()},
            overrides=chosen.overrides,
            plan_text=toml_of(chosen.document),
            plan_from_file=chosen.from_file,
            workers=workers or 1,
        )

    return _measured(folder, measure)


def _resume(folder: Path, url: str | None, chosen: ChosenPlan | None, workers: int | None) -> int:
    from loadtests.run.rows import RowsError
    from loadtests.run.run_file import is_series, read_run
    from loadtests.run.sweep import resume_sweep
    from loadtests.run.target import without_doubles

    if is_series(folder):
        return go_on(folder, url, chosen, workers)
    try:
        run = read_run(folder)
    except RowsError as error:
        bad_input(error)
    engine = {"engine": run.engine}
    if chosen is not None and without_doubles(engine, chosen.plan, lambda _: None) != run.plan:
        bad_input(f"{folder} has another plan than these options name: leave them out to go on with its own")
    if url and run.service is not None:
        bad_input(f"the sweep of {folder} started its own service, and does so again: leave out --url")
    service = (url or run.url) if run.service is None else _own(run.service["options"], folder)
    return _measured(folder, lambda console: resume_sweep(service, folder, console=console, workers=workers))


def _own(options: dict[str, str], folder: Path) -> AbstractContextManager[str]:
    from loadtests.run.target import Unreachable
    from service.front.launch import launched

    return launched(flags(options), folder / "service.log", lost=(Unreachable,))


def _measured(folder: Path, measure: Callable[[Console], SweepResult]) -> int:
    """Run `measure` and make the report; returns the exit code."""
    from loadtests.plan.prompts import PromptError
    from loadtests.run.folder import DiskFull, disk_full_named
    from loadtests.run.rows import RowsError
    from loadtests.run.target import ModeFailed, TargetError
    from service.front.launch import LaunchError

    console = Console()
    try:
        with ended_in_order(), disk_full_named(folder):
            try:
                result = measure(console)
            except ModeFailed as error:
                return fail_without_rows(folder, [], error)
            except (LaunchError, PromptError, TargetError, RowsError) as error:
                bad_input(error)
            return _reported(folder, console, result)
    except DiskFull as error:
        typer.echo(f"launchbound: {error}", err=True)
        last_line(folder, None, valid=False)
        return EXIT_MACHINE


def _reported(folder: Path, console: Console, result: SweepResult) -> int:
    from loadtests.run.rows import RowsError

    failed = [f"FAILED  {gate.name}: {gate.detail}" for gate in result.failed]
    try:
        conclude(folder, console)
    except ModuleNotFoundError as error:
        conclude_later(folder, failed, error, valid=not failed)
    except RowsError as error:
        return fail_without_rows(folder, failed, error)
    return result.exit_code


if TYPE_CHECKING:
    from loadtests.plan.plan_file import PlanDocument
    from loadtests.run.run_file import Series
    from service.cli.sweep_plan import ChosenPlan


def described(chosen: ChosenPlan) -> str:
    """What the precisions add to a plan's description; nothing where it names none."""
    from loadtests.plan.presets import estimate_most_seconds, estimate_seconds

    if len(chosen.dtypes) < 2:
        return "".join(f"\n\nprecision\n  {dtype}" for dtype in chosen.dtypes)
    least, most = (estimate(chosen.plan) for estimate in (estimate_seconds, estimate_most_seconds))
    count = len(chosen.dtypes)
    lines = ["", "", "precisions, one after the other, with a service each"]
    lines += [f"  {dtype:<18} into FOLDER/{dtype}, about {least:.0f} s" for dtype in chosen.dtypes]
    at_most = f", at most about {count * most:.0f} s" if most > least else ""
    lines.append(
        f"  in all {count} × {len(chosen.plan.cells)} cells, about {count * least:.0f} s{at_most} "
        "(as of float32; the services' own warm-up not counted)"
    )
    return "\n".join(lines)


def begin(chosen: ChosenPlan, out: Path | None, options: dict[str, str | None], workers: int) -> int:
    """Sweep `chosen` in each of its precisions; returns the exit code."""
    from loadtests.plan.plan_file import toml_of
    from loadtests.run.sweep import begin_series, new_folder

    if options.get("advice"):
        bad_input("--advice is of one precision: choose that by --dtype, or leave out --advice")
    served = _served(chosen.document, {name: value for name, value in options.items() if value is not None})
    for dtype in chosen.dtypes:
        settings_from(**served, dtype=dtype)
    folder = out or new_folder()

    def measure(console: Console) -> Series:
        return begin_series(
            folder,
            chosen.dtypes,
            toml_of(chosen.document),
            measuring(chosen.document, served, console, chosen.overrides, chosen.from_file, workers),
            printed(console),
            options=served,
            overrides=chosen.overrides,
            plan_from_file=chosen.from_file,
            workers=workers,
        )

    return _measured_series(folder, measure)


def go_on(folder: Path, url: str | None, chosen: ChosenPlan | None, workers: int | None) -> int:
    """Go on with the series in `folder`; returns the exit code. `chosen`: what the options name."""
    from loadtests.plan.plan_file import parse_plan
    from loadtests.run.rows import RowsError
    from loadtests.run.run_file import read_series
    from loadtests.run.sweep import resume_series

    if url:
        bad_input(f"the sweeps of {folder} started their own services, and do so again: leave out --url")
    try:
        series = read_series(folder)
    except RowsError as error:
        bad_input(error)
    document = parse_plan(series.plan)
    if chosen is not None and chosen.document != document:
        bad_input(f"{folder} has another plan than these options name: leave them out to go on with its own")

    def measure(console: Console) -> Series:
        count = workers or series.workers
        sweep = measuring(document, series.options, console, series.overrides, series.plan_from_file, count)
        return resume_series(folder, sweep, printed(console))

    return _measured_series(folder, measure)


def _served(document: PlanDocument, options: dict[str, str]) -> dict[str, str]:
    """Options of `serve` for `document`, but for the precision."""
    from loadtests.plan.plan_file import plan_of

    plan = plan_of(document)
    sizes = ",".join(map(str, plan.batch_sizes))
    given = {name: value for name, value in options.items() if name != "dtype"}
    return {**given, "modes": ",".join(plan.ladder_modes), "batch_sizes": sizes}


def _measured_series(folder: Path, measure: Callable[[Console], Series]) -> int:
    """Run `measure` and write the page, also over what an interruption has left; returns the exit code."""
    from loadtests.plan.prompts import PromptError
    from loadtests.run.folder import DiskFull, disk_full_named
    from loadtests.run.rows import RowsError
    from loadtests.run.target import TargetError

    console = Console()
    try:
        with ended_in_order(), disk_full_named(folder):
            try:
                measure(console)
            except KeyboardInterrupt:
                return pictured(picture_of_series, folder, interrupted=True)
            except (PromptError, TargetError, RowsError) as error:
                bad_input(error)
            return pictured(picture_of_series, folder, interrupted=False)
    except DiskFull as error:
        typer.echo(f"launchbound: {error}", err=True)
        last_line(folder, None, valid=False)
        return EXIT_MACHINE
