"""Open-loop cells over all rounds: rates, latencies, goodput, and a witness for the queue's clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from loadtests.plan.cells import Cell
from loadtests.report.load.objectives import SECONDS, Criterion, Kind
from loadtests.report.load.visits import Visit
from loadtests.report.load.witness import Witness, witness_of
from service.statistics.intervals import Interval, mean_interval
from service.statistics.knee import RatePoint, kept_up_point, met_point
from service.statistics.quantiles import quantile_interval
from service.statistics.visits import rate_interval, settling

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
    def witness(self) -> Witness | None:
        """The queue's mean wait as measured, and as it has to be."""
        return witness_of(self.cell, self.rate, self.visits)
