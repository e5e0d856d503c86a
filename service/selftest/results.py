"""One row of the selftest: a property, its bound, what was measured, and the verdict by one rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from scipy.special import betaincinv

from service.statistics.intervals import Interval

Verdict = Literal["pass", "fail", "undecided", "not measurable here"]
Numbers = Mapping[str, float | list[float]]

NOT_MEASURABLE: Verdict = "not measurable here"
_WORST_FIRST: tuple[Verdict, ...] = ("fail", "undecided", "pass", NOT_MEASURABLE)


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `value`, `low` and `high` are in `unit`; `numbers` are the samples that they come from.

    `runs`: how many runs of its check they come from; an undecided row is judged again over two together.
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
    runs: int = 1


def verdict_within(interval: Interval, least: float = -math.inf, most: float = math.inf) -> Verdict:
    """`pass` if all of the interval lies in [least, most], `fail` if none of it does, else `undecided`."""
    if least <= interval.low and interval.high <= most:
        return "pass"
    if interval.low > most or interval.high < least:
        return "fail"
    return "undecided"


def interval_result(
    name: str,
    bound: str,
    interval: Interval,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    unit: str = "ratio",
    note: str = "",
    numbers: Numbers | None = None,
) -> CheckResult:
    """A row whose verdict is that of `interval` within [least, most]."""
    return _result(name, bound, verdict_within(interval, least, most), interval, unit, note, numbers)


def exact_result(
    name: str,
    bound: str,
    holds: bool,
    value: float,
    unit: str,
    note: str = "",
    numbers: Numbers | None = None,
) -> CheckResult:
    """A row without an interval: it holds for every observation, or it does not."""
    verdict: Verdict = "pass" if holds else "fail"
    return _result(name, bound, verdict, Interval(value, value, value, 1), unit, note, numbers)


def count_result(name: str, count: int, total: int, needed: int, note: str = "") -> CheckResult:
    """`pass` at `needed` or more; `fail` where the share's interval lies below; `undecided` between."""
    share = share_interval(count, total)
    verdict: Verdict = "pass" if count >= needed else "fail" if share.high < needed / total else "undecided"
    counted = Interval(count, share.low * total, share.high * total, total)
    return _result(name, f"at least {needed} of {total}", verdict, counted, f"of {total}", note)


def not_measurable(name: str, bound: str, why: str) -> CheckResult:
    """A row without a number; `why` is its note."""
    return CheckResult(name=name, bound=bound, verdict=NOT_MEASURABLE, note=why)


def broken(name: str, note: str) -> CheckResult:
    """The failed row of a check that did not finish."""
    return CheckResult(name=name, bound="runs", verdict="fail", note=note)


def _result(
    name: str,
    bound: str,
    verdict: Verdict,
    interval: Interval,
    unit: str,
    note: str,
    numbers: Numbers | None = None,
) -> CheckResult:
    return CheckResult(
        name=name,
        bound=bound,
        verdict=verdict,
        value=interval.value,
        low=interval.low,
        high=interval.high,
        unit=unit,
        note=note,
        numbers=dict(numbers or {}),
    )


def share_interval(count: float, total: int, confidence: float = 0.95) -> Interval:
    """The share `count / total` with its Clopper-Pearson interval."""
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, tail))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 1 - tail))
    return Interval(count / total, low, high, total)


def difference_of_shares(count: float, total: int, other: float, others: int) -> Interval:
    """`count / total` less `other / others`, by the intervals of both (Newcombe 1998)."""
    one, two = share_interval(count, total), share_interval(other, others)
    value = one.value - two.value
    low = value - math.hypot(one.value - one.low, two.high - two.value)
    high = value + math.hypot(one.high - one.value, two.value - two.low)
    return Interval(value, low, high, total + others)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of `verdicts`: one failure fails all, and what could not be measured does not count."""
    return min(verdicts, key=_WORST_FIRST.index)
