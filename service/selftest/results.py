"""One row of the selftest: a property, its bound, what was measured, and the verdict by one rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from service.statistics.intervals import Interval

Verdict = Literal["pass", "fail", "undecided", "not measurable here"]

NOT_MEASURABLE: Verdict = "not measurable here"
_WORST_FIRST: tuple[Verdict, ...] = ("fail", "undecided", "pass", NOT_MEASURABLE)


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found. `value`, `low` and `high` are in `unit`; `numbers` are what they come from.

    `repeated` says that a first run was undecided and that this is the second.
    """

    name: str
    bound: str
    verdict: Verdict
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "ratio"
    note: str = ""
    numbers: dict[str, float | list[float]] = {}
    repeated: bool = False


def judge(interval: Interval, least: float = -math.inf, most: float = math.inf) -> Verdict:
    """`pass` if all of the interval lies in [least, most], `fail` if none of it does, else `undecided`."""
    if least <= interval.low and interval.high <= most:
        return "pass"
    if interval.low > most or interval.high < least:
        return "fail"
    return "undecided"


def judged(
    name: str,
    bound: str,
    interval: Interval,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    unit: str = "ratio",
    note: str = "",
    numbers: Mapping[str, float | list[float]] | None = None,
) -> CheckResult:
    """A row whose verdict is that of `interval` within [least, most]."""
    return CheckResult(
        name=name,
        bound=bound,
        verdict=judge(interval, least, most),
        value=interval.value,
        low=interval.low,
        high=interval.high,
        unit=unit,
        note=note,
        numbers=dict(numbers or {}),
    )


def exact(name: str, bound: str, holds: bool, value: float, unit: str, note: str = "") -> CheckResult:
    """A row that needs no interval: it holds for all that was seen, or it does not."""
    return CheckResult(
        name=name,
        bound=bound,
        verdict="pass" if holds else "fail",
        value=value,
        low=value,
        high=value,
        unit=unit,
        note=note,
    )


def not_measurable(name: str, bound: str, why: str) -> CheckResult:
    """A row that says why it has no number."""
    return CheckResult(name=name, bound=bound, verdict=NOT_MEASURABLE, note=why)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of `verdicts`: one failure fails all, and what could not be measured says nothing."""
    return min(verdicts, key=_WORST_FIRST.index)
