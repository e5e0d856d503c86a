"""Readings of steps that several jobs share: taken once, read by each job for the steps that it ran in."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from service.step.meters import Readings

KEPT_STEPS = 4096
"""So many that no longer belong to any job are kept before they are dropped together."""


@dataclass(frozen=True, slots=True)
class BucketReadings:
    """Some of a log's steps, all of one bucket, with the sequences in them and their periods in nanoseconds.

    A period goes from a step's call to the next one's, less the stall between them.
    """

    readings: Readings
    rows: int
    periods: list[int]


@dataclass(slots=True)
class StepLog:
    """Steps of one phase, numbered from 0 since the log began.

    By step: its bucket, its sequences, the nanoseconds after it in which the jobs in it stood still while
    others were prefilled, and whether a job has counted it for the metrics.
    """

    readings: Readings = field(default_factory=Readings)
    buckets: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    stalls: list[int] = field(default_factory=list)
    counted: list[bool] = field(default_factory=list)
    dropped: int = 0

    @property
    def end(self) -> int:
        """The number of the next step."""
        return self.dropped + len(self.buckets)

    def add(self, bucket: int, rows: int) -> None:
        """A step has run, whose readings have been taken."""
        self.buckets.append(bucket)
        self.rows.append(rows)
        self.stalls.append(0)
        self.counted.append(False)

    def forget(self, before: int) -> None:
        """No job will ask for the steps before number `before`."""
        count = before - self.dropped
        if count < KEPT_STEPS:
            return
        own = self.readings
        for values in (own.begin, own.call, own.feed, own.sampling, own.wait, own.span):
            del values[:count]
        own.unmeasured = max(0, own.unmeasured - count)
        for each in (self.buckets, self.rows, self.stalls, self.counted):
            del each[:count]
        self.dropped = before

    def stretch(self, begin: int, end: int, until_ns: int) -> Stretch:
        """The steps from number `begin` to before `end`, which is the last so far; their time ends then."""
        return Stretch(self, range(begin - self.dropped, end - self.dropped), until_ns)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps in which one job ran, by their place in `log`."""

    log: StepLog
    places: range
    until_ns: int

    @property
    def stall_ns(self) -> int:
        """Nanoseconds in which the job stood still between them."""
        return sum(self.log.stalls[place] for place in self.places)

    @property
    def rows(self) -> list[int]:
        """Sequences in each step."""
        return [self.log.rows[place] for place in self.places]

    def by_bucket(self) -> dict[int, BucketReadings]:
        """All steps, by their bucket."""
        return self._by_bucket(list(self.places))

    def count(self) -> dict[int, BucketReadings]:
        """Those that no job has counted yet, by their bucket; from now on they are."""
        counted = self.log.counted
        new = [place for place in self.places if not counted[place]]
        for place in new:
            counted[place] = True
        return self._by_bucket(new)

    def _by_bucket(self, places: list[int]) -> dict[int, BucketReadings]:
        groups: dict[int, list[int]] = {}
        for place in places:
            groups.setdefault(self.log.buckets[place], []).append(place)
        return {bucket: self._readings(chosen) for bucket, chosen in groups.items()}

    def _readings(self, chosen: list[int]) -> BucketReadings:
        own, count = self.log.readings, len(self.log.buckets)

        def at(values: list[int]) -> list[int]:
            # What a phase has once, as a prefill in chunks its one wait, belongs to it as a whole.
            return [values[place] for place in chosen] if len(values) >= count else list(values)

        readings = Readings(
            begin=at(own.begin),
            call=at(own.call),
            feed=at(own.feed),
            sampling=at(own.sampling),
            wait=at(own.wait),
            span=at(own.span),
            unmeasured=len(chosen) if own.unmeasured else 0,
        )
        begins = [*own.begin[self.places.start : self.places.stop], self.until_ns]
        lasts = [later - earlier for earlier, later in pairwise(begins)]
        periods = [lasts[p - self.places.start] - self.log.stalls[p] for p in chosen] if own.begin else []
        return BucketReadings(readings, sum(self.log.rows[place] for place in chosen), periods)
