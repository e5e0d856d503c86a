"""The checks by name, and how one is run: what breaks is a failed row, what is undecided runs twice."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from service.measure.isolation import Disturbance
from service.selftest.results import CheckResult

BENCH: dict[str, str] = {
    "ladder": "the floor falls down the ladder",
    "widths": "the floor does not depend on the twin's width",
    "intercept": "real widths extrapolated to no work agree with the floor",
    "perf": "perf's samples agree with the twin's share",
    "kernel": "a longer kernel moves kernel alone",
    "host": "added host work moves dispatch alone",
    "own-work": "the engine's own work per decode step",
    "instrumentation": "measuring costs next to nothing",
    "cuda": "what only a GPU can show",
}
"""Run in a process of their own, on the engine's cores, without a service."""

SERVICE: dict[str, str] = {
    "parts": "the parts of a request",
    "scrape": "time of a scrape under load",
    "concurrency": "step time under load",
    "eager-eager": "no difference where there is none",
    "twice": "the same sweep twice",
}
"""Run over HTTP against a service started for them."""

MOST_SHARE = 0.02
"""Alone on its core, a check loses well under one percent, to the kernel's own ticks and threads."""

ENGINE_REST = "engine-rest"
"""No check, but a number from the bench that `parts` needs."""


def chosen(only: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Names to run on the bench and over HTTP. Raises ValueError for a name that is not there."""
    names = list(only) if only is not None else [*BENCH, *SERVICE]
    if unknown := [name for name in names if name not in {*BENCH, *SERVICE}]:
        raise ValueError(f"no check '{unknown[0]}': try some of {', '.join([*BENCH, *SERVICE])}")
    return [name for name in BENCH if name in names], [name for name in SERVICE if name in names]


def settle(
    name: str, check: Callable[[], list[CheckResult]], disturbance: Disturbance | None = None
) -> list[CheckResult]:
    """The check's rows. Where one is undecided, the check runs once more and that row is the new one.

    With `disturbance`, what failed while others used the cores is undecided too.
    """
    judge = partial(excuse, disturbance) if disturbance else _as_it_is
    try:
        first = judge(check())
        if all(row.verdict != "undecided" for row in first):
            return first
        second = {row.name: row for row in judge(check())}
    except Exception as error:  # noqa: BLE001 - a check that breaks is a failed row, and the others still run
        traceback.print_exc()
        note = f"broke: {type(error).__name__}: {error}"[:300]
        return [CheckResult(name=name, bound="runs", verdict="fail", note=note)]
    return [
        msgspec.structs.replace(second[row.name], repeated=True)
        if row.verdict == "undecided" and row.name in second
        else row
        for row in first
    ]


def _as_it_is(rows: list[CheckResult]) -> list[CheckResult]:
    return rows


def excuse(disturbance: Disturbance, rows: list[CheckResult]) -> list[CheckResult]:
    """`rows`, failures made undecided where too much was lost; passes stand, as noise does not help."""
    share = disturbance.take_share()
    return [_excused(row, share) for row in rows] if share > MOST_SHARE else rows


def _excused(row: CheckResult, share: float) -> CheckResult:
    if row.verdict != "fail" or row.low == row.high:
        return row
    note = f"others took {share:.0%} of the core meanwhile; {row.note}".rstrip("; ")
    return msgspec.structs.replace(row, verdict="undecided", note=note)
