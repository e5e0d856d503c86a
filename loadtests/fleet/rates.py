"""What each machine gives for its time, money and energy, and where one gives more than all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtests.compare.runs import Entry, best
from loadtests.fleet.record import FleetTask
from loadtests.plan.cells import Group
from loadtests.report.gpu_power import GpuPower
from loadtests.report.summaries import Summary
from service.statistics.builds import LATENCY_SCATTER, apart
from service.statistics.intervals import Interval

NO_PRICE = "no price in the plan"


@dataclass(frozen=True, slots=True)
class Measured:
    """A task with its results, and what is known of its GPU's power."""

    task: FleetTask
    entry: Entry
    power: GpuPower


@dataclass(frozen=True, slots=True)
class Row:
    """A machine in one group of cells, in the mode that it would ship there; a rate it lacks is None.

    `tokens_per_joule` counts the energy of the GPU's board alone.
    """

    measured: Measured
    summary: Summary
    decided: bool
    tokens_per_second: Interval
    tokens_per_dollar: Interval | None
    tokens_per_joule: Interval | None

    @property
    def valid(self) -> bool:
        """Whether all gates of its sweep passed."""
        return self.measured.entry.valid

    @property
    def no_joule(self) -> str:
        """Why there are no tokens per joule."""
        return self.measured.power.absent


RATES: Mapping[str, Callable[[Row], Interval | None]] = {
    "tokens per second": lambda row: row.tokens_per_second,
    "tokens per dollar": lambda row: row.tokens_per_dollar,
    "tokens per joule": lambda row: row.tokens_per_joule,
}


@dataclass(frozen=True, slots=True)
class Most:
    """The row with the most of a rate, and the others not told apart from it; `alike`: no other is."""

    row: Row
    near: tuple[Row, ...]
    alike: bool


def rows_of(measured: Sequence[Measured], group: Group) -> list[Row]:
    """The tasks that have `group`, the most tokens per second first."""
    found = [row for one in measured if (row := _row(one, group)) is not None]
    return sorted(found, key=lambda row: -row.tokens_per_second.value)


def most(rows: Sequence[Row], rate: str) -> Most | None:
    """Of the valid rows that have `rate`; None where fewer than two have, so that nothing is compared.

    Machines are not paired: a difference is one beyond their intervals and what sweeps of one build scatter.
    """
    known = [(value, row) for row in rows if row.valid and (value := RATES[rate](row)) is not None]
    if len(known) < 2:
        return None
    first, row = max(known, key=lambda one: one[0].value)
    near = tuple(
        other for value, other in known if other is not row and not apart(first, value, LATENCY_SCATTER)
    )
    return Most(row, near, alike=len(near) == len(known) - 1)


def _row(one: Measured, group: Group) -> Row | None:
    verdict = one.entry.verdict(group)
    if verdict is None:
        return None
    summary = best(verdict)
    rate = summary.tokens_per_second
    price, watts = one.task.price, one.power.by_cell.get(summary.cell.name)
    return Row(
        measured=one,
        summary=summary,
        decided=verdict.shipped is not None,
        tokens_per_second=rate,
        tokens_per_dollar=None if price is None else _scaled(rate, 3600 / price),
        tokens_per_joule=None if watts is None else per_watt(rate, watts),
    )


def _scaled(rate: Interval, factor: float) -> Interval:
    return Interval(rate.value * factor, rate.low * factor, rate.high * factor, rate.samples)


def per_watt(rate: Interval, watts: Interval) -> Interval:
    """Tokens per joule, from the ends of both intervals that lie furthest apart: wider than 95 %."""
    high = rate.high / watts.low if watts.low > 0 else math.inf
    low = rate.low / watts.high
    return Interval(rate.value / watts.value, low, high, min(rate.samples, watts.samples))
