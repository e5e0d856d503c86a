"""`series.json`: one plan swept in several precisions, a folder each, and how far each of them has come."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from loadtests.plan.plan_file import Dtype
from loadtests.run.document_file import DocumentFile
from loadtests.run.run_file import RUN_FILE, RunError, read_run

SERIES_FILE = "series.json"
SERIES_VERSION = 1

State = Literal["not begun", "begun", "complete", "failed"]


class SeriesRun(msgspec.Struct, kw_only=True):
    """One precision; its results are in the folder of this name beside `series.json`.

    `begun`: it runs, or ended early and is gone on with. `failed`: it measured nothing, or can never become
    valid; `said` is why, or what ended it early.
    """

    dtype: Dtype
    state: State = "not begun"
    said: str | None = None

    @property
    def over(self) -> bool:
        """Whether nothing of it is owed."""
        return self.state in ("complete", "failed")

    def begin(self) -> None:
        """Note that it runs, and forget what ended it before."""
        self.state, self.said = "begun", None


class Series(msgspec.Struct, kw_only=True):
    """Runs of the plan file `plan`, in order. `options` are those of `serve` besides the precision.

    `environment` holds the `LAUNCHBOUND_…` variables and `load_tests` the commit of the load tests' own code,
    with a digest of its changes: the same for all runs. `overrides` and `plan_from_file` as in `run.json`;
    `workers` load processes post the requests.
    """

    format_version: int = SERIES_VERSION
    started: str
    plan: str
    options: dict[str, str]
    environment: dict[str, str]
    load_tests: dict[str, Any]
    overrides: dict[str, Any] = {}
    plan_from_file: bool = False
    workers: int = 1
    runs: list[SeriesRun]


_SERIES_FILE = DocumentFile(
    SERIES_FILE,
    Series,
    SERIES_VERSION,
    RunError,
    folder="series of sweeps",
    writer="launchbound sweep",
    mend="report its folders by `report A B C`",
)


def is_series(folder: Path) -> bool:
    """Whether `folder` holds the runs of a series."""
    return _SERIES_FILE.is_in(folder)


def write_series(folder: Path, series: Series) -> None:
    """Write `series.json` atomically."""
    _SERIES_FILE.write(folder, series)


def read_series(folder: Path) -> Series:
    """`series.json` of `folder`; a run whose own folder says that it is complete is.

    Raises RunError where a file is missing, broken or of another format.
    """
    series = _SERIES_FILE.read(folder)
    for run in series.runs:
        # Killed between the end of a run and the note of it here, or gone on with by its own folder.
        if run.state == "begun" and _is_complete(folder / run.dtype):
            run.state, run.said = "complete", None
    return series


def _is_complete(folder: Path) -> bool:
    return (folder / RUN_FILE).is_file() and read_run(folder).complete
