"""The command that measures a service under load: `sweep`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from service.cli.options import (
    EXIT_MACHINE,
    Advice,
    BatchSizes,
    Device,
    Dtype,
    Model,
    Modes,
    bad_input,
    ended_in_order,
    flags,
    settings_from,
    split_list,
)
from service.cli.report import (
    conclude,
    conclude_later,
    fail_without_rows,
    last_line,
    picture_of_series,
    pictured,
    printed,
    reported,
)

if TYPE_CHECKING:
    from loadtests.plan import plan_file
    from loadtests.plan.cells import Plan
    from loadtests.plan.plan_file import PlanDocument
    from loadtests.run.run_file import Series
    from loadtests.run.sweep import Measure, SweepResult

app = typer.Typer()


@app.command(epilog="Example: launchbound sweep --preset standard --modes eager,inference_mode,compiled")
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
    named = PlanOptions(plan, preset, seed, modes, batch_sizes, slo)
    service = {"model": model, "device": device, "dtype": dtype, "advice": advice}
    served = {name: value for name, value in service.items() if value is not None}
    if toml and not dry_run:
        bad_input("--toml shows a plan: add --dry-run")
    try:
        chosen = chosen_plan(named, dtype, own_service=url is None)
    except ValueError as error:
        bad_input(error)
    if resume is not None:
        if out or dry_run or served:
            bad_input(
                "--resume goes on in its folder, with its service: "
                "leave out all but --url, --workers and the plan"
            )
        raise typer.Exit(_resume(resume, url, None if named == PlanOptions() else chosen, workers))
    if dry_run:
        typer.echo(_shown(chosen, toml), nl=not toml)
        return
    if url and (served or chosen.dtypes):
        bad_input(
            "--model, --device, --dtype, --advice and a plan's `dtypes` belong to the service: leave them "
            "out where --url names one; sweep one of each precision, and show them together by `report A B C`"
        )
    begin = _begin_series if len(chosen.dtypes) > 1 else _begin
    raise typer.Exit(begin(chosen, url, out, served, workers or 1))


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options that name a plan, or replace what it says."""

    file: Path | None = None
    preset: str | None = None
    seed: int | None = None
    modes: str | None = None
    batch_sizes: str | None = None
    slo: str | None = None


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """A plan with the document that it is made of; `overrides` are options that replaced what that said."""

    document: PlanDocument
    plan: Plan
    overrides: dict[str, Any]
    from_file: bool

    @property
    def dtypes(self) -> list[plan_file.Dtype]:
        """The precisions to sweep it in, one after the other; empty: the service's default."""
        return self.document.dtypes or []


def chosen_plan(named: PlanOptions, dtype: str | None = None, own_service: bool = True) -> ChosenPlan:
    """The plan of a file or preset with the options over it; by default, of the preset `quick`.

    Where no modes are named they are those that a service serves by default, and in one of the sweep's own
    those too that are worth the time. `dtype` replaces all precisions that the plan names. Raises PlanError
    where it cannot be run, and ValueError where an option cannot be read.
    """
    from loadtests.plan.cells import slo_table
    from loadtests.plan.plan_file import DTYPES, plan_of, read_plan_file
    from loadtests.plan.presets import overridden, preset_document
    from service.modes import default_modes, swept_modes

    if named.file is not None and named.preset is not None:
        raise ValueError("--plan and --preset both name a plan: leave one out")
    written = read_plan_file(named.file) if named.file else preset_document(named.preset or "quick")
    sizes = [int(size) for size in split_list(named.batch_sizes) or ()]
    limits = None if named.slo is None else slo_table(named.slo)
    document = overridden(written, named.seed, split_list(named.modes), sizes or None, limits)
    if dtype is not None and document.dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"no precision '{dtype}': try one of {', '.join(DTYPES)}")
        document = msgspec.structs.replace(document, dtypes=[dtype])
    overrides = {
        name: getattr(document, name)
        for name in ("seed", "modes", "batch_sizes", "dtypes")
        if getattr(document, name) != getattr(written, name)
    }
    if document.slo is not None and document.slo != written.slo:
        overrides["slo"] = document.slo.text
    if document.modes is None:
        document = msgspec.structs.replace(document, modes=swept_modes() if own_service else default_modes())
    plan = plan_of(document)
    # The default modes by name: they may be others where the plan is read again.
    document = msgspec.structs.replace(document, modes=plan.modes)
    return ChosenPlan(document, plan, overrides, named.file is not None)


def _shown(chosen: ChosenPlan, toml: bool) -> str:
    """The plan as a plan file, or described."""
    from loadtests.plan.plan_file import toml_of
    from loadtests.plan.presets import describe, estimate_most_seconds, estimate_seconds

    if toml:
        return toml_of(chosen.document)
    lines = [describe(chosen.plan)]
    count = len(chosen.dtypes)
    if count == 1:
        lines += ["", "precision", f"  {chosen.dtypes[0]}"]
    elif count > 1:
        least, most = estimate_seconds(chosen.plan), estimate_most_seconds(chosen.plan)
        at_most = f", at most about {count * most:.0f} s" if most > least else ""
        lines += ["", "precisions, one after the other, with a service each"]
        lines += [f"  {dtype:<18} into FOLDER/{dtype}, about {least:.0f} s" for dtype in chosen.dtypes]
        lines.append(
            f"  in all {count} × {len(chosen.plan.cells)} cells, about {count * least:.0f} s{at_most} "
            "(as of float32; the services' own warm-up not counted)"
        )
    return "\n".join(lines)


def _served(plan: Plan, options: dict[str, str]) -> dict[str, str]:
    """The options of `serve` for `plan`."""
    sizes = ",".join(map(str, plan.batch_sizes))
    return {**options, "modes": ",".join(plan.ladder_modes), "batch_sizes": sizes}


def _begin(
    chosen: ChosenPlan, url: str | None, out: Path | None, options: dict[str, str], workers: int
) -> int:
    """Sweep once; returns the exit code."""
    from loadtests.plan.plan_file import toml_of
    from loadtests.run.folder import commit_name, results_path
    from loadtests.run.resumption import service_environment
    from loadtests.run.sweep import Origin, run_sweep

    served: dict[str, str] = {}
    if not url:
        precision = {"dtype": chosen.dtypes[0]} if chosen.dtypes else {}
        served = _served(chosen.plan, {**options, **precision})
        settings_from(**served)
    folder = out or results_path("remote" if url else commit_name())
    folder.mkdir(parents=True, exist_ok=True)
    origin = Origin(
        plan_text=toml_of(chosen.document),
        plan_from_file=chosen.from_file,
        overrides=chosen.overrides,
        service=None if url else {"options": served, "environment": service_environment()},
    )

    def measure(console: Console) -> SweepResult:
        service = url or _own_service(served, folder)
        return run_sweep(service, chosen.plan, folder, console=console, origin=origin, workers=workers)

    return _measured(folder, measure)


def _resume(folder: Path, url: str | None, chosen: ChosenPlan | None, workers: int | None) -> int:
    """Go on with a sweep or a series; `chosen`: what the options name. Returns the exit code."""
    from loadtests.run.rows import RowsError
    from loadtests.run.run_file import is_series, read_run
    from loadtests.run.sweep import resume_sweep
    from loadtests.run.target import without_doubles

    if is_series(folder):
        return _resume_series(folder, url, chosen, workers)
    try:
        run = read_run(folder)
    except RowsError as error:
        bad_input(error)
    engine = {"engine": run.engine}
    if chosen is not None and without_doubles(engine, chosen.plan, lambda _: None) != run.plan:
        bad_input(f"{folder} has another plan than these options name: leave them out to go on with its own")
    if url and run.service is not None:
        bad_input(f"the sweep of {folder} started its own service, and does so again: leave out --url")
    service = (url or run.url) if run.service is None else _own_service(run.service["options"], folder)
    return _measured(folder, lambda console: resume_sweep(service, folder, console=console, workers=workers))


def _own_service(options: dict[str, str], folder: Path) -> AbstractContextManager[str]:
    from loadtests.run.target import Unreachable
    from service.front.launch import launched

    return launched(flags(options), folder / "service.log", lost=(Unreachable,))


@contextmanager
def _in_order(folder: Path) -> Iterator[None]:
    """End what the block starts when a signal comes, and the program where the disk is full."""
    from loadtests.run.folder import DiskFull, disk_full_named

    try:
        with ended_in_order(), disk_full_named(folder):
            yield
    except DiskFull as error:
        typer.echo(f"launchbound: {error}", err=True)
        last_line(folder, None, valid=False)
        raise typer.Exit(EXIT_MACHINE) from None


def _measured(folder: Path, measure: Callable[[Console], SweepResult]) -> int:
    """Run `measure` and make the report; returns the exit code."""
    from loadtests.run.rows import RowsError
    from loadtests.run.target import ModeFailed, TargetError
    from service.front.launch import LaunchError

    console = Console()
    with _in_order(folder):
        try:
            result = measure(console)
        except ModeFailed as error:
            return fail_without_rows(folder, [], error)
        except (LaunchError, TargetError, RowsError) as error:
            bad_input(error)
        return _reported(folder, console, result)


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


def _begin_series(
    chosen: ChosenPlan, url: str | None, out: Path | None, options: dict[str, str], workers: int
) -> int:
    """Sweep `chosen` in each of its precisions, with services of its own; returns the exit code."""
    from loadtests.plan.plan_file import toml_of
    from loadtests.run.folder import commit_name, git_state, now, results_path
    from loadtests.run.resumption import service_environment
    from loadtests.run.run_file import Series, SeriesRun
    from loadtests.run.sweep import begin_series

    if "advice" in options:
        bad_input("--advice is of one precision: choose that by --dtype, or leave out --advice")
    served = _served(chosen.plan, {name: value for name, value in options.items() if name != "dtype"})
    for dtype in chosen.dtypes:
        settings_from(**served, dtype=dtype)
    folder = out or results_path(commit_name())
    series = Series(
        started=now(),
        plan=toml_of(chosen.document),
        options=served,
        environment=service_environment(),
        load_tests=git_state(),
        overrides=chosen.overrides,
        plan_from_file=chosen.from_file,
        workers=workers,
        runs=[SeriesRun(dtype=dtype) for dtype in chosen.dtypes],
    )

    def measure(console: Console) -> None:
        run = _measure(chosen.document, series, workers, console)
        begin_series(folder, series, run, printed(console))

    return _measured_series(folder, measure)


def _resume_series(folder: Path, url: str | None, chosen: ChosenPlan | None, workers: int | None) -> int:
    """Go on with the series in `folder`; returns the exit code."""
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

    def measure(console: Console) -> None:
        run = _measure(document, series, workers or series.workers, console)
        resume_series(folder, run, printed(console))

    return _measured_series(folder, measure)


def _measured_series(folder: Path, measure: Callable[[Console], None]) -> int:
    """Run `measure` and write the page, also over what an interruption has left; returns the exit code."""
    from loadtests.run.rows import RowsError
    from loadtests.run.target import TargetError

    interrupted = False
    with _in_order(folder):
        try:
            measure(Console())
        except KeyboardInterrupt:
            interrupted = True
        except (TargetError, RowsError) as error:
            bad_input(error)
        return pictured(picture_of_series, folder, interrupted)


def _measure(document: PlanDocument, series: Series, workers: int, console: Console) -> Measure:
    """The function that sweeps `document` in one precision, by a service of its own, and reports it."""
    from loadtests.plan.plan_file import plan_of, toml_of
    from loadtests.run.resumption import service_environment
    from loadtests.run.sweep import Origin, resume_sweep, run_sweep

    def measure(dtype: plan_file.Dtype, folder: Path, resumed: bool) -> SweepResult:
        options = {**series.options, "dtype": dtype}
        service = _service_of_series(options, folder)
        if resumed:
            result = resume_sweep(service, folder, console=console, workers=workers)
        else:
            origin = Origin(
                plan_text=toml_of(msgspec.structs.replace(document, dtypes=[dtype])),
                plan_from_file=series.plan_from_file,
                overrides=series.overrides,
                service={"options": options, "environment": service_environment()},
            )
            plan = plan_of(document)
            result = run_sweep(service, plan, folder, console=console, origin=origin, workers=workers)
        _report_of_series(folder, console)
        return result

    return measure


@contextmanager
def _service_of_series(options: dict[str, str], folder: Path) -> Iterator[str]:
    """A service of our own; where it does not start, or ends, a TargetError that has its last words."""
    from loadtests.run.target import TargetError
    from service.front.launch import LaunchError

    try:
        with _own_service(options, folder) as url:
            yield url
    except LaunchError as error:
        raise TargetError(str(error)) from error


def _report_of_series(folder: Path, console: Console) -> None:
    """Report one run; where that is not possible yet, print the reason: the sweeps go on."""
    from loadtests.run.rows import RowsError

    try:
        reported(folder, console)
    except ModuleNotFoundError as error:
        printed(console)(f"no report of {folder}: {error.name} is not installed here")
    except RowsError as error:
        printed(console)(f"no report of {folder}: {error}")
