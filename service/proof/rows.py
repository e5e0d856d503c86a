"""The one kind of row, with its verdict by its bound; and what a check is, which makes rows of samples."""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from scipy.special import betaincinv

from service.measure.rounds import Log, OffCpuTime, paired_median_ratio
from service.statistics.intervals import Interval

Verdict = Literal["pass", "fail", "undecided", "not measurable here"]

PROMPT = "def mean(values):\n    total = 0\n    for value in values:\n"
NEW_TOKENS = 32
"""The request that all checks send, over HTTP and in process alike."""

UNCOUNTED = 2
"""First requests, rounds or jobs that are run and not counted."""

MOST_OFF_CPU = 0.02
"""Alone on its core, a check loses well under one percent, to the kernel's own ticks and threads."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """`value`, `low` and `high` are in `unit`, from so many `runs` of its check."""

    name: str
    bound: str
    verdict: Verdict
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "ratio"
    note: str = ""
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Property:
    """What rows claim: the name, the bound in words, and [least, most], in which the measured has to lie.
    `of` ends the names of several rows of one property.
    """

    name: str
    bound: str
    least: float = -math.inf
    most: float = math.inf
    unit: str = "ratio"

    def within(self, interval: Interval, of: str = "", note: str = "") -> Row:
        """`pass` if all of `interval` lies in [least, most], `fail` if none of it does, else `undecided`."""
        inside = self.least <= interval.low and interval.high <= self.most
        outside = interval.low > self.most or interval.high < self.least
        return self.row("pass" if inside else "fail" if outside else "undecided", interval, of, note)

    def ratio(self, above: Sequence[float], below: Sequence[float], of: str = "", note: str = "") -> Row:
        """As `within`, of the median ratio of two variants, `above` over `below`, by round."""
        return self.within(paired_median_ratio(above, below), of, note)

    def exactly(self, value: float, of: str = "", note: str = "") -> Row:
        """As `within`, of a value without an interval: it lies in the bound for every observation, or not."""
        return self.within(Interval(value, value, value, 1), of, note)

    def not_measurable(self, why: str, of: str = "") -> Row:
        """A row without a number; `why` is its note."""
        return Row(name=self.name + of, bound=self.bound, verdict="not measurable here", note=why)

    def row(self, verdict: Verdict, interval: Interval, of: str = "", note: str = "") -> Row:
        return Row(
            name=self.name + of,
            bound=self.bound,
            verdict=verdict,
            value=interval.value,
            low=interval.low,
            high=interval.high,
            unit=self.unit,
            note=note,
        )


def count_row(name: str, count: int, total: int, needed: int, note: str = "") -> Row:
    """`pass` at `needed` or more; `fail` where the share's interval lies below; `undecided` between."""
    share = share_interval(count, total)
    verdict: Verdict = "pass" if count >= needed else "fail" if share.high < needed / total else "undecided"
    counted = Interval(count, share.low * total, share.high * total, total)
    needs = Property(name, f"at least {needed} of {total}", unit=f"of {total}")
    return needs.row(verdict, counted, note=note)


def broken(name: str, note: str) -> Row:
    return Row(name=name, bound="runs", verdict="fail", note=note)


def share_interval(count: float, total: int) -> Interval:
    """The share `count / total` with its Clopper-Pearson interval at 95 %."""
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, 0.025))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 0.975))
    return Interval(count / total, low, high, total)


def difference_of_shares(count: float, total: int, other: float, others: int) -> Interval:
    """`count / total` less `other / others`, by the intervals of both (Newcombe 1998)."""
    one, two = share_interval(count, total), share_interval(other, others)
    value = one.value - two.value
    low = value - math.hypot(one.value - one.low, two.high - two.value)
    high = value + math.hypot(one.high - one.value, two.value - two.low)
    return Interval(value, low, high, total + others)


class NotMeasurableError(Exception):
    """A check that cannot measure on this machine; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Check:
    """`measure` returns the samples by round of each variant that could be measured; `judge`, which is pure,
    makes rows of them. Where `measure` raises NotMeasurableError there is a row per one of `properties`.
    """

    measure: Callable[[Any, Log], dict[Any, list[Any]]]
    judge: Callable[[dict[Any, list[Any]]], Iterable[Row]]
    properties: tuple[Property, ...] = ()


class Run(msgspec.Struct, frozen=True):
    """One run of a check: each variant with its samples by round, as JSON; `off_cpu`: others had the core."""

    samples: list[tuple[Any, list[Any]]]
    off_cpu: float


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line from the worker: progress of the check `name`, its rows at its end, or the machine's `facts`."""

    name: str = ""
    text: str = ""
    rows: list[Row] | None = None
    runs: list[Run] = []
    facts: dict[str, str | int] | None = None


def run_check(
    name: str, check: Check, subject: object, log: Log, off_cpu: OffCpuTime | None = None
) -> tuple[list[Row], list[Run]]:
    """The rows of `check`, and its runs; undecided rows are judged again over two runs together. An exception
    is a failed row. `off_cpu` tells which runs others took the core from.
    """
    runs: list[tuple[dict[Any, list[Any]], float]] = []

    def measured_once_more() -> list[Row]:
        found = check.measure(subject, log)
        runs.append((found, off_cpu.take_share() if off_cpu else 0.0))
        return _judged(check, runs)

    rows: list[Row] = []
    try:
        rows = measured_once_more()
        if any(row.verdict == "undecided" for row in rows):
            both = {row.name: row for row in measured_once_more()}
            rows = [both.get(row.name, row) if row.verdict == "undecided" else row for row in rows]
    except NotMeasurableError as reason:
        rows = rows or [claimed.not_measurable(str(reason)) for claimed in check.properties]
    except Exception as error:  # noqa: BLE001 - a check that breaks is a failed row, and the others still run
        traceback.print_exc()
        rows = [*rows, broken(name, f"broke: {type(error).__name__}: {error}"[:300])]
    return rows, [Run(_as_json(found), share) for found, share in runs]


def _as_json(found: Mapping[Any, list[Any]]) -> list[tuple[Any, list[Any]]]:
    """JSON has no counts by anything but text: they are pairs."""
    return [
        (key, [list(one.items()) if isinstance(one, Counter) else one for one in samples])
        for key, samples in found.items()
    ]


def _judged(check: Check, runs: list[tuple[dict[Any, list[Any]], float]]) -> list[Row]:
    """From the runs on a quiet core; where none was quiet, from all runs, and no failure is then decided."""
    quiet = [run for run in runs if run[1] <= MOST_OFF_CPU]
    used = quiet or runs
    together: dict[Any, list[Any]] = {}
    for found, _ in used:
        for key, samples in found.items():
            together.setdefault(key, []).extend(samples)
    rows = [msgspec.structs.replace(row, runs=len(used)) for row in check.judge(together)]
    if quiet:
        return rows
    return [_undecided_if_failed(row, max(share for _, share in used)) for row in rows]


def _undecided_if_failed(row: Row, off_cpu_share: float) -> Row:
    """Of a disturbed core: noise helps no row to pass, and decides no failure that has an interval."""
    if row.verdict != "fail" or row.low == row.high:
        return row
    note = f"other processes took {off_cpu_share:.0%} of the core meanwhile; {row.note}".rstrip("; ")
    return msgspec.structs.replace(row, verdict="undecided", note=note)
