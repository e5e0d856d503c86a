"""`sweep` of a plan with several precisions: a service and a results folder each, and one page over all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from service.cli.endings import last_line, pictured
from service.cli.options import EXIT_MACHINE, bad_input, settings_from
from service.cli.report import picture_of_series
from service.cli.series_run import measuring, printed
from service.cli.signals import ended_in_order

if TYPE_CHECKING:
    from loadtests.plan.document import PlanDocument
    from loadtests.run.series_file import Series
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
    from loadtests.run.series import begin_series
    from loadtests.run.sweep import new_folder

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

    return _measured(folder, measure)


def go_on(folder: Path, url: str | None, chosen: ChosenPlan | None, workers: int | None) -> int:
    """Go on with the series in `folder`; returns the exit code. `chosen`: what the options name."""
    from loadtests.plan.plan_file import parse_plan
    from loadtests.run.rows import RowsError
    from loadtests.run.series import resume_series
    from loadtests.run.series_file import read_series

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

    return _measured(folder, measure)


def _served(document: PlanDocument, options: dict[str, str]) -> dict[str, str]:
    """Options of `serve` for `document`, but for the precision."""
    from loadtests.plan.document import plan_of

    plan = plan_of(document)
    sizes = ",".join(map(str, plan.batch_sizes))
    given = {name: value for name, value in options.items() if name != "dtype"}
    return {**given, "modes": ",".join(plan.ladder_modes), "batch_sizes": sizes}


def _measured(folder: Path, measure: Callable[[Console], Series]) -> int:
    """Run `measure` and write the page, also over what an interruption has left; returns the exit code."""
    from loadtests.plan.prompts import PromptError
    from loadtests.run.disk import DiskFull, disk_full_named
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
