"""Readings of steps that several jobs share: taken once, read by each job for the steps that it ran in."""

from __future__ import annotations

from collections.abc import Sequence
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

    By step: its bucket and its sequences. `stalls` has by a step's number the nanoseconds after it in which
    the jobs in it stood still while others were prefilled; `counted` the numbers of those that a job has
    counted for the metrics.
    """

    readings: Readings = field(default_factory=Readings)
    buckets: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    stalls: dict[int, int] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)
    dropped: int = 0

    @property
    def end(self) -> int:
        """The number of the next step."""
        return self.dropped + len(self.buckets)

    def add(self, bucket: int, rows: int) -> None:
        """A step has run, whose readings have been taken."""
        self.buckets.append(bucket)
        self.rows.append(rows)

    def stall(self, nanoseconds: int) -> None:
        """The jobs in the newest step have stood still since it."""
        newest = self.end - 1
        self.stalls[newest] = self.stalls.get(newest, 0) + nanoseconds

    def forget(self, before: int) -> None:
        """No job will ask for the steps before number `before`."""
        count = before - self.dropped
        if count < KEPT_STEPS:
            return
        own = self.readings
        for values in (own.begin, own.call, own.feed, own.sampling, own.wait, own.span):
            del values[:count]
        own.unmeasured = max(0, own.unmeasured - count)
        del self.buckets[:count], self.rows[:count]
        self.stalls = {number: ns for number, ns in self.stalls.items() if number >= before}
        self.counted = {number for number in self.counted if number >= before}
        self.dropped = before

    def stretch(self, begin: int, end: int, until_ns: int) -> Stretch:
        """The steps from number `begin` to before `end`, which is the last so far; their time ends then."""
        return Stretch(self, range(begin, end), until_ns)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps in which one job ran, by their numbers in `log`."""

    log: StepLog
    numbers: range
    until_ns: int

    @property
    def stall_ns(self) -> int:
        """Nanoseconds in which the job stood still after them."""
        return sum(ns for number, ns in self.log.stalls.items() if number in self.numbers)

    @property
    def _places(self) -> slice:
        """Where the steps are in the log's lists."""
        return slice(self.numbers.start - self.log.dropped, self.numbers.stop - self.log.dropped)

    @property
    def rows(self) -> list[int]:
        """Sequences in each step."""
        return self.log.rows[self._places]

    @property
    def buckets(self) -> list[int]:
        """The bucket of each step."""
        return self.log.buckets[self._places]

    @property
    def begins(self) -> list[int]:
        """When each step was called, in nanoseconds; empty where no clock is read."""
        return self.log.readings.begin[self._places]

    def count(self) -> Sequence[int]:
        """The numbers of those that no job has counted yet; from now on they are."""
        counted = self.log.counted
        new = (
            self.numbers
            if counted.isdisjoint(self.numbers)
            else [n for n in self.numbers if n not in counted]
        )
        counted.update(new)
        return new

    def by_bucket(self, numbers: Sequence[int] | None = None) -> dict[int, BucketReadings]:
        """The steps with these numbers, or all, by their bucket."""
        if numbers is None and len(set(buckets := self.buckets)) == 1:
            return {buckets[0]: self._readings(self.numbers)}
        groups: dict[int, list[int]] = {}
        for number in self.numbers if numbers is None else numbers:
            groups.setdefault(self.log.buckets[number - self.log.dropped], []).append(number)
        return {bucket: self._readings(chosen) for bucket, chosen in groups.items()}

    def _readings(self, chosen: Sequence[int]) -> BucketReadings:
        own, count, dropped = self.log.readings, len(self.log.buckets), self.log.dropped
        whole = len(chosen) == len(self.numbers)

        def at(values: list[int]) -> list[int]:
            # What a phase has once, as a prefill in chunks its one wait, belongs to it as a whole.
            if len(values) < count:
                return list(values)
            return values[self._places] if whole else [values[number - dropped] for number in chosen]

        readings = Readings(
            begin=at(own.begin),
            call=at(own.call),
            feed=at(own.feed),
            sampling=at(own.sampling),
            wait=at(own.wait),
            span=at(own.span),
            unmeasured=len(chosen) if own.unmeasured else 0,
        )
        lasts = [later - earlier for earlier, later in pairwise([*self.begins, self.until_ns])]
        stalls, first = self.log.stalls, self.numbers.start
        periods = [lasts[n - first] - stalls.get(n, 0) for n in chosen] if own.begin else []
        return BucketReadings(readings, sum(at(self.log.rows)), periods)
