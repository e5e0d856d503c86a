"""A series: ordinary sweeps in one folder, each of a start of the service, since a process is one draw."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from loadtests.plan.plan_file import PlanDocument
from loadtests.run.folder import git_state
from loadtests.run.resumption import refuse, service_environment
from loadtests.run.run_file import RUN_FILE, SERIES_FILE, DocumentFile, RunError, read_run


class Series(msgspec.Struct, kw_only=True):
    """The plan of each start, in their order, by the name of its folder, which leads to no other one.

    All have the `options` of `serve`, and `alike`: the commit, and the variables of the service.
    """

    format_version: int = 1
    alike: dict[str, Any]
    options: dict[str, str]
    workers: int
    plans: dict[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")], PlanDocument]


_FILE = DocumentFile(SERIES_FILE, Series, 1, "series", "launchbound sweep", "report its folders by `report`")
is_series, write_series, read_series = _FILE.is_in, _FILE.write, _FILE.read


def begin_series(
    folder: Path, documents: Sequence[PlanDocument], options: Mapping[str, str], workers: int
) -> None:
    """Write the series of `documents` into `folder`, which is created.

    Models take turns, so that an early end has some of each; every start has a seed of its own. Raises
    RunError for a model that is named twice, and where the folder holds results.
    """
    plans = {
        re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{one.model or 'start'}-{number + 1}").lstrip("_.-"): (
            msgspec.structs.replace(one, starts=1, seed=one.seed + number)
        )
        for number in range(max(one.starts for one in documents))
        for one in documents
        if number < one.starts
    }
    if sum(one.starts for one in documents) > len(plans):
        raise RunError("a model is in the plan twice: leave one of its [[models]] out")
    if is_series(folder) or (folder / RUN_FILE).exists():
        raise RunError(f"{folder} holds a sweep already: name a new folder, or `--resume {folder}`")
    folder.mkdir(parents=True, exist_ok=True)
    alike = git_state() | service_environment()
    write_series(folder, Series(alike=alike, options=dict(options), workers=workers, plans=plans))


def left_of(folder: Path) -> tuple[Series, list[str]]:
    """The series in `folder` and its starts that are not complete. Raises RunError as `reopen` does."""
    series, now = read_series(folder), git_state() | service_environment()
    refuse(folder, series.alike, now, sorted(series.alike.keys() | now.keys()))
    left = [name for name in series.plans if not is_complete(folder / name)]
    if not left:
        raise RunError(f"nothing is left to measure in {folder}: `launchbound report {folder}` reports it")
    return series, left


def is_complete(folder: Path) -> bool:
    return (folder / RUN_FILE).is_file() and read_run(folder).complete
