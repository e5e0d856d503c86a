"""Runs sections one after another, then makes the tables, the summary and the archive of what is on disk."""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from rich.console import Console

from loadtests.run.environment import git_state
from loadtests.run.gpu_watch import query_of, summary, watched
from service.gpu_check import tables
from service.gpu_check.cells import cells_of, without_numbers
from service.gpu_check.goal import BySection, Goal
from service.gpu_check.goals import goals
from service.gpu_check.plan import Section, limit_seconds
from service.gpu_check.rows import Row, read_rows
from service.gpu_check.runner import Ended, not_begun, run_section
from service.gpu_check.size_goals import SECTION as SIZES
from service.gpu_check.size_goals import size_goals
from service.gpu_check.teardown_goals import SECTION as TEARDOWN
from service.gpu_check.teardown_goals import teardown_goals

FORMAT_VERSION = 3
SUMMARY_FILE = "summary.json"
LEAST_SECONDS = 5.0
"""A section that had less time than this is not begun."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was run: `started` is in Unix seconds, `seconds` is how long all of it took.

    `cold`: there was no compiled code yet. `unwatched` is the reason where clocks were not sampled.
    """

    started: float
    seconds: float
    cold: bool
    ended: list[Ended]
    unwatched: str | None

    @property
    def well(self) -> bool:
        """Whether every section did all that it was to do."""
        return all(one.well for one in self.ended)


def run_sections(
    sections: Sequence[Section], folder: Path, cache: Path, total_seconds: float, say: Callable[[str], None]
) -> Checked:
    """Run `sections` into `folder` within `total_seconds`, each whatever became of those before it."""
    started, until = time.time(), monotonic() + total_seconds
    cold = not cache.exists() or not any(cache.iterdir())
    environment = _environment(cache)
    command, unwatched = query_of()
    ended = []
    for place, section in enumerate(sections):
        left = until - monotonic()
        if left < LEAST_SECONDS:
            ended.append(not_begun(section, f"the {total_seconds:.0f} s of all sections were over"))
            continue
        say(f"{section.name}: {section.about}")
        with watched(command, folder / f"{section.name}.clocks.csv"):
            one = run_section(section, folder, environment, limit_seconds(sections, place, left))
        ended.append(one)
        say(f"{section.name}: {one.how}, {one.rows} rows, {one.seconds:.0f} s {one.detail}".rstrip())
    return Checked(started, time.time() - started, cold, ended, unwatched)


def conclude(checked: Checked, folder: Path, part: int | None, console: Console) -> int:
    """Print the tables, write the summary and the archive; the exit code.

    0 where every section ended well and every deciding goal of `part` is met, else 1. None: none is judged.
    """
    rows = {one.name: read_rows(folder / f"{one.name}.jsonl")[0] for one in checked.ended}
    cells = cells_of(rows.get("ladder", []))
    if cells:
        rows["ladder"] = [*rows["ladder"], *cells]
    judged = _judged(checked, rows, part)
    tables.show_cells(console, cells)
    if left_out := without_numbers(rows.get("ladder", [])):
        console.print(f"{left_out} jobs of the ladder are in no cell: their rows have no numbers to use")
    tables.show_sizes(console, rows.get("sizes", []))
    tables.show_sections(console, checked.ended)
    if judged:
        tables.show_goals(console, judged)
    if checked.unwatched:
        console.print(f"clocks, power and throttling are unknown: {checked.unwatched}", markup=False)
    passed = checked.well and all(goal.holds for goal in judged)
    summary = msgspec.json.encode(_summary(checked, folder, judged, cells, passed))
    (folder / SUMMARY_FILE).write_bytes(msgspec.json.format(summary) + b"\n")
    console.print(f"results in {folder}, all of them in {archive(folder)}", soft_wrap=True, markup=False)
    return 0 if passed else 1


def _judged(checked: Checked, rows: BySection, part: int | None) -> list[Goal]:
    if part == 1:
        return goals(rows, checked.started, checked.seconds, checked.cold)
    own = {TEARDOWN: teardown_goals, SIZES: size_goals} if part == 2 else {}
    return [goal for section, judge in own.items() if section in rows for goal in judge(rows)]


def archive(folder: Path) -> Path:
    """Everything in `folder` as FOLDER.tar.gz beside it."""
    path = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, arcname=folder.name)
    return path


def _summary(
    checked: Checked, folder: Path, judged: Sequence[Goal], cells: Sequence[Row], passed: bool
) -> dict[str, Any]:
    clocks = {one.name: summary(folder / f"{one.name}.clocks.csv") for one in checked.ended}
    return {
        "format_version": FORMAT_VERSION,
        "started": checked.started,
        "seconds": checked.seconds,
        "compile_cache": "cold" if checked.cold else "warm",
        **git_state(),
        "passed": passed,
        "sections": [asdict(one) for one in checked.ended],
        "goals": [asdict(goal) for goal in judged],
        "cells": cells,
        "clocks": clocks,
        "no_clocks": checked.unwatched,
    }


def _environment(cache: Path) -> Mapping[str, str]:
    """This environment, with everything that is compiled or traced below `cache`."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        **os.environ,
        "LAUNCHBOUND_CACHE_FOLDER": str(cache.resolve()),
        "TORCHINDUCTOR_CACHE_DIR": str(cache.resolve() / "inductor"),
        "CUDA_CACHE_PATH": str(cache.resolve() / "cuda"),
        "PYTHONUNBUFFERED": "1",
    }
