"""What was measured of a claim, and whether the claim holds: an interval against the quoted range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from service.anatomy.lessons.findings import Findings
from service.statistics.intervals import Interval

Verdict = Literal["agrees", "agrees in part", "disagrees", "undecided", "cannot be measured here"]

ABOUT = 1.5
"""A quoted `~x` is taken as x / ABOUT to x · ABOUT."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A value of `what` with its interval; what was counted has equal ends."""

    what: str
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, what: str, interval: Interval, scale: float = 1.0) -> Measured:
        """`interval` times `scale`."""
        return cls(what, interval.value * scale, interval.low * scale, interval.high * scale)

    @classmethod
    def counted(cls, what: str, value: float) -> Measured:
        """An exact number."""
        return cls(what, value, value, value)


@dataclass(frozen=True, slots=True)
class Answer:
    """`values` as they are shown, and the verdict; `why_not` where nothing could be measured here."""

    values: tuple[str, ...]
    verdict: Verdict
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class Quoted:
    """A quoted range from `low` to `high` of `unit`, and how its values are found.

    `why_not` gives the reason where `measured` finds none.
    """

    low: float
    high: float
    unit: str
    measured: Callable[[Findings], Iterable[Measured]]
    why_not: Callable[[Findings], str] = lambda _: "nothing of it was measured"

    def answer(self, findings: Findings) -> Answer:
        """The verdict that the whole interval of every value allows: see `verdict_of`."""
        values = tuple(self.measured(findings))
        if not values:
            return Answer((), "cannot be measured here", self.why_not(findings))
        shown = tuple(f"{_text(value)}{self.unit}" for value in values)
        return Answer(shown, verdict_of(values, self.low, self.high))


def verdict_of(values: Iterable[Measured], low: float, high: float) -> Verdict:
    """Agrees: every interval lies in [low, high]. Disagrees: each lies outside.

    In part: some do the one and some the other. Undecided: for lack of that, one reaches across an end.
    """
    single: set[Verdict] = set()
    for value in values:
        inside = low <= value.low and value.high <= high
        outside = value.high < low or high < value.low
        single.add("agrees" if inside else "disagrees" if outside else "undecided")
    if len(single) == 1:
        return single.pop()
    return "agrees in part" if {"agrees", "disagrees"} <= single else "undecided"


def about(value: float) -> tuple[float, float]:
    """The range of a quoted `~value`."""
    return value / ABOUT, value * ABOUT


def _text(value: Measured) -> str:
    what = f"{value.what} " if value.what else ""
    if value.low == value.high:
        return f"{what}{_number(value.value)}"
    high = "more" if math.isinf(value.high) else _number(value.high)
    return f"{what}{_number(value.value)} ({_number(value.low)} to {high})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
