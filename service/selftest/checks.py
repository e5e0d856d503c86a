"""The checks by name, how one is run, and the events in which the worker process reports them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable

import msgspec

from service.measure.isolation import OffCpuTime
from service.selftest.results import CheckResult, broken

ENGINE_CHECKS: dict[str, str] = {
    "ladder": "the floor falls from mode to mode",
    "widths": "the floor does not depend on the twin's width",
    "intercept": "step time extrapolated over widths to no work agrees with the floor",
    "perf": "the kernel share of perf's samples agrees with the twin's",
    "kernel": "a longer kernel moves kernel time alone",
    "host": "added host work moves dispatch alone",
    "own-work": "the engine's own work per decode step",
    "instrumentation": "instrumentation adds at most 1 % to a step",
    "cuda": "kernel time, twin and graph launches on a GPU",
}
"""Run in a worker process, on the engine's cores, without a service."""

SERVICE_CHECKS: dict[str, str] = {
    "parts": "the parts of a request",
    "scrape": "time of a scrape under load",
    "concurrency": "step time under load",
    "eager-eager": "no difference between eager and eager",
    "twice": "the same sweep twice",
}
"""Run over HTTP against a service started for them."""

ENGINE_OVERHEAD = "engine-overhead"
"""Not a check: seconds by mode from the worker process, which `parts` needs."""

PROMPT = "def mean(values):\n    total = 0\n    for value in values:\n"
NEW_TOKENS = 32
"""The request that all checks send, over HTTP and in process alike."""

MOST_OFF_CPU = 0.02
"""Alone on its core, a check loses well under one percent, to the kernel's own ticks and threads."""


class CheckProgress(msgspec.Struct, frozen=True, tag="progress"):
    """How far the check `name` is."""

    name: str
    text: str


class MachineFacts(msgspec.Struct, frozen=True, tag="machine"):
    """Processor, device, torch, threads and dtype of the worker process."""

    facts: dict[str, str | int]


class CheckFinished(msgspec.Struct, frozen=True, tag="finished"):
    """The rows of the check `name`."""

    name: str
    rows: list[CheckResult]


class EngineOverhead(msgspec.Struct, frozen=True, tag="engine_overhead"):
    """By mode, an engine's time per job outside its steps, in seconds."""

    seconds: dict[str, float]


WorkerEvent = CheckProgress | MachineFacts | CheckFinished | EngineOverhead


def choose_checks(only: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Names to run in the worker and over HTTP; None: all. Raises ValueError for an unknown name."""
    known = [*ENGINE_CHECKS, *SERVICE_CHECKS]
    names = list(only) if only is not None else known
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no check '{unknown[0]}': try some of {', '.join(known)}")
    return [name for name in ENGINE_CHECKS if name in names], [
        name for name in SERVICE_CHECKS if name in names
    ]


def run_check(
    name: str, check: Callable[[], list[CheckResult]], off_cpu: OffCpuTime | None = None
) -> list[CheckResult]:
    """The rows of `check`; undecided ones are taken from a second run. An exception is a failed row.

    With `off_cpu`, failures measured while the core ran something else count as undecided.
    """
    try:
        first = _rows(check, off_cpu)
        if all(row.verdict != "undecided" for row in first):
            return first
        second = {row.name: row for row in _rows(check, off_cpu)}
    except Exception as error:  # noqa: BLE001 - a check that breaks is a failed row, and the others still run
        traceback.print_exc()
        return [broken(name, f"broke: {type(error).__name__}: {error}"[:300])]
    return [
        msgspec.structs.replace(second[row.name], repeated=True)
        if row.verdict == "undecided" and row.name in second
        else row
        for row in first
    ]


def _rows(check: Callable[[], list[CheckResult]], off_cpu: OffCpuTime | None) -> list[CheckResult]:
    rows = check()
    return undecided_where_disturbed(rows, off_cpu.take_share()) if off_cpu else rows


def undecided_where_disturbed(rows: list[CheckResult], off_cpu_share: float) -> list[CheckResult]:
    """`rows`; above MOST_OFF_CPU failures become undecided. Passes stand, as noise does not help them."""
    if off_cpu_share <= MOST_OFF_CPU:
        return rows
    return [_undecided(row, off_cpu_share) for row in rows]


def _undecided(row: CheckResult, off_cpu_share: float) -> CheckResult:
    if row.verdict != "fail" or row.low == row.high:
        return row
    note = f"other processes took {off_cpu_share:.0%} of the core meanwhile; {row.note}".rstrip("; ")
    return msgspec.structs.replace(row, verdict="undecided", note=note)
