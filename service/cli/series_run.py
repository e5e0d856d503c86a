"""One run of a series: a service of its own in one precision, swept, and the report of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from service.cli.options import flags
from service.cli.report import reported

if TYPE_CHECKING:
    from loadtests.plan.plan_file import Dtype, PlanDocument
    from loadtests.run.sweep import Measure, SweepResult


def measuring(
    document: PlanDocument,
    served: dict[str, str],
    console: Console,
    overrides: dict[str, Any],
    plan_from_file: bool,
    workers: int,
) -> Measure:
    """What sweeps `document` in one precision, by a service with the options `served`, and reports it."""
    from loadtests.plan.plan_file import plan_of, toml_of
    from loadtests.run.resumption import service_environment
    from loadtests.run.sweep import resume_sweep, run_sweep

    def measure(dtype: Dtype, folder: Path, resumed: bool) -> SweepResult:
        options = {**served, "dtype": dtype}
        service = _service(options, folder)
        if resumed:
            result = resume_sweep(service, folder, console=console, workers=workers)
        else:
            result = run_sweep(
                service,
                plan_of(document),
                folder,
                console=console,
                settings=dict(options),
                started_with={"options": options, "environment": service_environment()},
                overrides=overrides,
                plan_text=toml_of(msgspec.structs.replace(document, dtypes=[dtype])),
                plan_from_file=plan_from_file,
                workers=workers,
            )
        _report(folder, console)
        return result

    return measure


@contextmanager
def _service(options: dict[str, str], folder: Path) -> Iterator[str]:
    """A service of our own; where it does not start, or ends, a TargetError that has its last words."""
    from loadtests.run.target import TargetError, Unreachable
    from service.front.launch import LaunchError, launched

    try:
        with launched(flags(options), folder / "service.log", lost=(Unreachable,)) as url:
            yield url
    except LaunchError as error:
        raise TargetError(str(error)) from error


def _report(folder: Path, console: Console) -> None:
    """The report of one run; where there can be none yet, the reason, and the sweeps go on."""
    from loadtests.run.rows import RowsError

    try:
        reported(folder, console)
    except ModuleNotFoundError as error:
        printed(console)(f"no report of {folder}: {error.name} is not installed here")
    except RowsError as error:
        printed(console)(f"no report of {folder}: {error}")


def printed(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
