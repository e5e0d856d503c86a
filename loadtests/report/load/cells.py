"""Open-loop cells over all rounds: rates, latencies, goodput, and a witness for the queue's clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from loadtests.plan.cells import Cell
from loadtests.report.load.objectives import Criterion, Kind
from loadtests.report.load.visits import Visit
from loadtests.report.load.witness import Witness, witness_of
from service.statistics.intervals import Interval, mean_interval
from service.statistics.quantiles import quantile_interval

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
        """Answers per second, mean over rounds."""
        return mean_interval([visit.served_rate for visit in self.visits])

    @cached_property
    def goodput(self) -> Interval | None:
        """Requests in time per second, mean over rounds; None without an objective."""
        return _mean([visit.goodput for visit in self.visits])

    @cached_property
    def attainment(self) -> Interval | None:
        """The share of requests in time, mean over rounds."""
        found = _mean([visit.met_share for visit in self.visits])
        if found is None:
            return None
        return Interval(found.value, max(0.0, found.low), min(1.0, found.high), found.samples)

    def quantile(self, kind: Kind, share: float) -> Interval | None:
        """A quantile of the judged answers' latencies; None where there are too few of them."""
        return quantile_interval([visit.latencies[kind] for visit in self.visits], share)

    @cached_property
    def witness(self) -> Witness | None:
        """The queue's mean wait as measured, and as it has to be."""
        return witness_of(self.cell, self.rate, self.visits)


def _mean(values: list[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    return mean_interval(known) if known and len(known) == len(values) else None
