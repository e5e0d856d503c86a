"""Sweeps one plan in several precisions, one after the other, or goes on with such a series."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtests.plan.plan_file import Dtype
from loadtests.run.disk import DiskFull, disk_full_named
from loadtests.run.environment import git_state
from loadtests.run.folder_lock import locked
from loadtests.run.part import SweepResult, now
from loadtests.run.resumption import CannotResume, refuse_other_start, service_environment
from loadtests.run.rows import ROWS_FILE
from loadtests.run.run_file import INTERRUPTED, PLAN_FILE, RUN_FILE
from loadtests.run.series_file import (
    SERIES_FILE,
    Series,
    SeriesRun,
    read_series,
    write_series,
)
from loadtests.run.target import TargetError
from loadtests.run.validation import check_rows

Measure = Callable[[Dtype, Path, bool], SweepResult]
"""Sweeps in a precision into a folder; True: goes on with what is there. It ends the service it started."""

Report = Callable[[str], None]


def begin_series(
    folder: Path,
    dtypes: list[Dtype],
    plan: str,
    measure: Measure,
    report: Report,
    *,
    options: dict[str, str],
    overrides: dict[str, Any] | None = None,
    plan_from_file: bool = False,
    workers: int = 1,
) -> Series:
    """Sweep `plan`, the text of a plan file, in each of `dtypes` into a folder of its name in `folder`.

    A run that fails does not stop the others; Ctrl-C does. `report` is called with lines to print; the other
    arguments are kept in `series.json`. Raises TargetError where `folder` holds results already, FolderInUse
    where another sweep writes to it, and DiskFull.
    """
    for name in (SERIES_FILE, ROWS_FILE):
        if (folder / name).exists():
            raise TargetError(
                f"{folder} holds a sweep already: name a new folder, or go on with it by --resume {folder}"
            )
    series = Series(
        started=now(),
        plan=plan,
        options=options,
        environment=service_environment(),
        load_tests=git_state(),
        overrides=overrides or {},
        plan_from_file=plan_from_file,
        workers=workers,
        runs=[SeriesRun(dtype=dtype) for dtype in dtypes],
    )
    folder.mkdir(parents=True, exist_ok=True)
    with disk_full_named(folder), locked(folder):
        (folder / PLAN_FILE).write_text(plan, encoding="utf-8")
        _run(folder, series, measure, report)
    return series


def resume_series(folder: Path, measure: Measure, report: Report) -> Series:
    """Go on with the series in `folder`: with the run that ended early, then with those not begun.

    Raises CannotResume where nothing is left, or where code or variables are not those it began with, else as
    `begin_series`.
    """
    with disk_full_named(folder), locked(folder):
        series = read_series(folder)
        write_series(folder, series)
        if all(run.over for run in series.runs):
            raise CannotResume(
                f"nothing is left to measure in {folder}: `launchbound report {folder}` reports it; a "
                "precision that failed is swept anew by itself, with --dtype and another folder"
            )
        refuse_other_start(folder, series.load_tests, git_state(), series.environment)
        _run(folder, series, measure, report)
    return series


def _run(folder: Path, series: Series, measure: Measure, report: Report) -> None:
    """Measure what is owed, in order, up to an interruption."""
    write_series(folder, series)
    for number, run in enumerate(series.runs, start=1):
        if run.over:
            continue
        report(f"precision {number} of {len(series.runs)}: {run.dtype}")
        run.begin()
        write_series(folder, series)
        stopped = _run_one(folder / run.dtype, run, measure)
        write_series(folder, series)
        if run.said is not None:
            report(f"{run.dtype}: {run.said}")
        if stopped:
            return


def _run_one(folder: Path, run: SeriesRun, measure: Measure) -> bool:
    """Measure one run, or go on with it, and note how that ended; returns whether it was interrupted."""
    folder.mkdir(exist_ok=True)
    try:
        result = measure(run.dtype, folder, (folder / RUN_FILE).exists())
    except CannotResume as error:
        # The others are measured all the same; with a failed request it can never become whole.
        run.state, run.said = "failed" if _hopeless(folder) else "begun", str(error)
        return False
    except TargetError as error:
        # With rows it may still become whole, by a service that starts the next time.
        run.state, run.said = "begun" if (folder / RUN_FILE).exists() else "failed", str(error)
        return False
    except DiskFull as error:
        raise DiskFull(folder.parent) from error
    if result.run.complete:
        run.state = "complete"
        return False
    run.state, run.said = "failed" if _hopeless(folder) else "begun", result.run.stopped_because
    return result.run.stopped_because == INTERRUPTED


def _hopeless(folder: Path) -> bool:
    """Whether a request failed, which is not sent again: the sweep can never be valid."""
    return check_rows(folder).errors.failed > 0
