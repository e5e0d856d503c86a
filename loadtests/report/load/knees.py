"""Open-loop cells over all rounds, and the knee of every mode: the highest rate that counts as served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadtests.plan.cells import Arrivals, Cell, Slo
from loadtests.plan.prompts import PromptSet
from loadtests.report.load.visits import SECONDS, Criterion, Kind, Visit, visits
from loadtests.report.results import Results
from service.statistics.intervals import Interval, mean_interval, quantile_interval, rate_interval, settling
from service.statistics.knee import (
    BoundedEstimate,
    RatePoint,
    kept_up_point,
    knee,
    knee_ratio,
    met_point,
    pollaczek_khinchine,
)


@dataclass(frozen=True, slots=True)
class QueueWaits:
    """Mean waits in seconds, means over rounds.

    `replayed` follows from the instants at which the requests were sent and their own time in the service,
    for any arrivals; it does not know the queue's clock. It takes all of that time as the engine's, although
    the front works on one request while the engine serves another, and so reads a little high under load.
    `steady` is Pollaczek and Khinchine's, for Poisson arrivals below saturation after an infinite time: a
    visit, which starts empty, waits less. None where it does not apply: both where requests are merged.
    """

    measured: Interval
    replayed: Interval | None
    steady: Interval | None


def _queue_waits(cell: Cell, rate: float, visits: Sequence[Visit]) -> QueueWaits | None:
    """The waits of `cell`; None where a visit has no answer or no time in the queue."""
    if not visits or any(not v.answers or np.isnan(v.queue_seconds).any() for v in visits):
        return None
    measured = mean_interval([float(visit.queue_seconds.mean()) for visit in visits])
    replayed = [visit.replayed_seconds for visit in visits if visit.replayed_seconds is not None]
    if len(replayed) < len(visits):
        return QueueWaits(measured, None, None)
    return QueueWaits(
        measured,
        mean_interval([float(waits.mean()) for waits in replayed]),
        _steady(cell, rate, visits),
    )


def _steady(cell: Cell, rate: float, visits: Sequence[Visit]) -> Interval | None:
    """From each round's service times; None for other arrivals, refused requests or a busy round."""
    if cell.arrivals != "poisson" or any(visit.cut or visit.rejected for visit in visits):
        return None
    waits = [pollaczek_khinchine(rate, visit.service_seconds.tolist()) for visit in visits]
    known = [wait for wait in waits if wait is not None]
    return mean_interval(known) if len(known) == len(waits) else None


QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class LoadCell:
    """One open-loop cell: its arrival rate per second, and its whole visits, one per round."""

    cell: Cell
    rate: float
    visits: tuple[Visit, ...]
    criterion: Criterion

    @property
    def sent(self) -> int:
        """Requests that were sent."""
        return sum(visit.sent for visit in self.visits)

    @property
    def rejected(self) -> int:
        """Requests that the service's bounded queue refused."""
        return sum(visit.rejected for visit in self.visits)

    @property
    def failed(self) -> int:
        """Requests without an answer that were not refused."""
        return sum(visit.sent - visit.answers - visit.rejected for visit in self.visits)

    @property
    def cut(self) -> int:
        """Visits that ended early because their queue only grew."""
        return sum(visit.cut for visit in self.visits)

    @cached_property
    def served_rate(self) -> Interval:
        """Answers per second, over all visits."""
        return self._rate_of([visit.served for visit in self.visits])

    @cached_property
    def goodput(self) -> Interval | None:
        """Requests in time per second, over all visits, at least as uncertain as their share."""
        in_time = [visit.in_time for visit in self.visits if visit.in_time is not None]
        if self.attainment is None or not in_time:
            return None
        found, served = self._rate_of(in_time), self.served_rate.value
        low = min(found.low, found.value, self.attainment.low * served)
        high = max(found.high, self.attainment.high * served)
        return Interval(found.value, max(0.0, low), high, found.samples)

    def _rate_of(self, counts: list[int]) -> Interval:
        """Per second of the visits' judged time; 0 where nothing was answered at all."""
        seconds = [visit.served_seconds for visit in self.visits]
        return rate_interval(counts, seconds) if sum(seconds) > 0 else Interval(0.0, 0.0, 0.0, len(counts))

    @cached_property
    def attainment(self) -> Interval | None:
        """The share of requests in time, mean over rounds; None without an objective, or where not known."""
        shares = [visit.met_share for visit in self.visits if visit.met_share is not None]
        if len(shares) < len(self.visits):
            return None
        point = met_point(self.rate, shares, self._judged)
        return Interval(point.share, point.low, point.high, len(shares))

    @cached_property
    def point(self) -> RatePoint | None:
        """What was served of its rate, as the knee takes it; None where a visit cannot be judged."""
        shares = [share for visit in self.visits if (share := visit.share(self.criterion)) is not None]
        if len(shares) < len(self.visits):
            return None
        found = kept_up_point if self.criterion.slo is None else met_point
        return found(self.rate, shares, self._judged)

    @property
    def _judged(self) -> int:
        """Requests of a visit that are judged."""
        return self.cell.requests - settling(self.cell.requests)

    @cached_property
    def quantiles(self) -> dict[Kind, dict[float, Interval | None]]:
        """The QUANTILES of the judged answers' latencies; None where there are too few of them."""
        by_kind = {kind: [visit.latencies[kind] for visit in self.visits] for kind in SECONDS}
        return {
            kind: {share: quantile_interval(values, share) for share in QUANTILES}
            for kind, values in by_kind.items()
        }

    @cached_property
    def effective_batch(self) -> Interval | None:
        """Sequences per step that a request ran with, mean over rounds; None where that is not known."""
        known = [visit.effective_batch for visit in self.visits if visit.effective_batch is not None]
        return mean_interval(known) if known and len(known) == len(self.visits) else None

    @cached_property
    def queue_waits(self) -> QueueWaits | None:
        """The queue's mean wait as measured, and as it has to be."""
        return _queue_waits(self.cell, self.rate, self.visits)


Ladder = tuple[int, PromptSet, int, Arrivals]
"""Batch size, prompt set, new tokens and arrivals: what the rates of one knee have in common."""


@dataclass(frozen=True, slots=True)
class ModeKnee:
    """The knee of one mode, in arrivals per second, from the cells of its ladder of rates, ascending.

    `estimate` None: what decides was not measured, as the first token's time by an old service. `too_short`:
    how many requests a visit should have where it has fewer, because its queue cannot grow to the limit.
    """

    mode: str
    cells: tuple[LoadCell, ...]
    estimate: BoundedEstimate | None
    too_short: int | None

    @property
    def rounds(self) -> int:
        """Rounds in which the least visited of its rates was visited whole."""
        return min(len(one.visits) for one in self.cells)


@dataclass(frozen=True, slots=True)
class LoadGroup:
    """The knees of all modes under the same conditions, in the ladder's order."""

    ladder: Ladder
    knees: tuple[ModeKnee, ...]

    def ratio(self, reference: str, mode: str) -> BoundedEstimate | None:
        """The knee of `mode` over that of `reference`; None for itself, or where one is not known."""
        estimates = {one.mode: one.estimate for one in self.knees}
        first, second = estimates.get(reference), estimates.get(mode)
        if first is None or second is None or reference == mode:
            return None
        return knee_ratio(first, second)


def load_groups(cells: Sequence[LoadCell], criterion: Criterion) -> list[LoadGroup]:
    """All groups, by batch size and conditions."""
    groups: dict[Ladder, dict[str, list[LoadCell]]] = {}
    for one in cells:
        cell = one.cell
        ladder = (cell.batch_size, cell.prompt_set, cell.new_tokens, cell.arrivals)
        groups.setdefault(ladder, {}).setdefault(cell.mode, []).append(one)
    return [
        LoadGroup(ladder, tuple(_knee(mode, own, criterion) for mode, own in modes.items()))
        for ladder, modes in sorted(groups.items())
    ]


def _knee(mode: str, cells: Sequence[LoadCell], criterion: Criterion) -> ModeKnee:
    ordered = tuple(sorted(cells, key=lambda one: one.rate))
    points = [point for one in ordered if (point := one.point) is not None]
    known = len(points) == len(ordered)
    return ModeKnee(
        mode,
        ordered,
        knee(points, criterion.least_share) if known else None,
        _too_short(ordered, criterion),
    )


def _too_short(cells: Sequence[LoadCell], criterion: Criterion) -> int | None:
    """A queue that starts empty takes about (limit × capacity)² arrivals to reach a limit."""
    limits = criterion.limits(cells[0].cell.new_tokens)
    waiting = [limits[kind] for kind in ("e2e", "ttft") if kind in limits]
    if not waiting or (capacity := _capacity(cells)) is None:
        return None
    needed = int(float(f"{(min(waiting) * capacity) ** 2:.1e}"))
    return needed if needed > min(one.cell.requests for one in cells) else None


def _capacity(cells: Sequence[LoadCell]) -> float | None:
    """Requests per second that are served at most: where they run one at a time, by their time in service;
    where some ran together, the highest rate that was seen.
    """
    service = [visit.service_seconds.mean() for one in cells for visit in one.visits if visit.answers]
    if not service:
        return None
    if any(one.effective_batch and one.effective_batch.value > one.cell.batch_size for one in cells):
        return max(one.served_rate.value for one in cells)
    return len(service) / float(sum(service))


class LoadFindings:
    """The statistics of the open-loop cells of `results`, each computed on first use.

    They are judged by `slo`, else by the plan's objectives, else by whether answers keep up with arrivals.
    """

    def __init__(self, results: Results, slo: Slo | None = None) -> None:
        self.results = results
        self.given = slo is not None
        self.criterion = Criterion(slo or results.run.plan.slo)

    @cached_property
    def cells(self) -> list[LoadCell]:
        """The open-loop cells that have a whole visit, in the plan's order."""
        rates = self.results.run.client.rates
        opened = [
            cell
            for cell in self.results.run.plan.cells
            if cell.open_loop and not cell.control and cell.name in rates
        ]
        found = {cell: tuple(visits(self.results, cell, self.criterion)) for cell in opened}
        return [LoadCell(cell, rates[cell.name], own, self.criterion) for cell, own in found.items() if own]

    @cached_property
    def groups(self) -> list[LoadGroup]:
        """The knees, by batch size and conditions."""
        return load_groups(self.cells, self.criterion)

    @property
    def source(self) -> str:
        """Where the objectives come from, for a reader."""
        if self.criterion.slo is None:
            return "There is no objective: `--slo` of `sweep` or `report`, or `[slo]` of a plan, sets one."
        if not self.given:
            return "The objectives are those of the plan."
        own = self.results.run.plan.slo
        return "The objectives were given for this report; " + (
            "the plan has none." if own is None else f"the plan's are: {Criterion(own).meaning}"
        )
