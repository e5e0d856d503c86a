"""Whole arrivals, simulated with costs near measured ones: what joining by the sum of all waits comes to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median

import msgspec
import pytest

from service.engine.batching import joining
from service.engine.batching.joining import FEWEST_JOBS, NEWEST_JOBS, Joining
from service.engine.batching.least_wait import worth_joining
from service.engine.local_inbox import local_job
from tests.engine.batching.merging import ArrivingQueue, given_costs

TOKENS = 32


@dataclass(frozen=True)
class Costs:
    """Microseconds by bucket, rounded from measurements; prefills of the third are assumed."""

    steps: tuple[int, int, int]
    prefills: tuple[int, int, int]
    buckets: Sequence[int] = (1, 4, 16)
    most: int = 16

    def step(self, rows: int) -> int:
        return self._of(self.steps, rows)

    def prefill(self, rows: int) -> int:
        return self._of(self.prefills, rows)

    def _of(self, costs: tuple[int, int, int], rows: int) -> int:
        return next(cost for cost, bucket in zip(costs, self.buckets, strict=True) if bucket >= rows)

    def whole(self, rows: int) -> int:
        """A batch of so many, from its prefill to its end."""
        return self.prefill(rows) + (TOKENS - 1) * self.step(rows)


COSTS = {
    "compiled": Costs((640, 1400, 3000), (3450, 8600, 30500)),
    "eager": Costs((1550, 2300, 3900), (4400, 10500, 34000)),
    "compiled, another processor": Costs((1000, 2700, 7200), (3000, 8400, 21600)),
}


def simulated(
    costs: Costs, arrivals: Sequence[float], users: bool = False, count: int = 1500
) -> tuple[list[float], float]:
    """Latencies and requests a microsecond, of `count` requests of one prompt; `users` send another each time
    that one of theirs has ended, after 1 to 4 ms, so that they fall out of step.
    """
    coming, waiting, begun = deque(arrivals), deque[float](), deque[float](maxlen=NEWEST_JOBS)
    running: list[tuple[float, int]] = []
    taken = list[float]()
    now, declined, pauses = 0.0, None, Random(3)
    while len(taken) < count:
        if not running and not waiting:
            now = max(now, coming[0])
        while coming and coming[0] <= now:
            waiting.append(coming.popleft())
        if waiting and len(running) < costs.most and declined != (len(running), len(waiting)):
            known = len(begun) >= FEWEST_JOBS
            rate = (len(begun) + len(waiting)) / max(1.0, now - begun[0]) if known else 0.0
            left = fmean(steps for _, steps in running) if running else 0.0
            joined = worth_joining(len(running), left, [1] * len(waiting), TOKENS, costs, rate)
            declined = None if joined else (len(running), len(waiting))
            room = max(bucket for bucket in costs.buckets if bucket <= costs.most - len(running))
            if joined := min(joined, room):
                now += costs.prefill(joined)
                new = [waiting.popleft() for _ in range(joined)]
                begun += new
                running += [(came, TOKENS - 1) for came in new]
        now += costs.step(len(running))
        running = [(came, steps - 1) for came, steps in running]
        ended = [now - came for came, steps in running if not steps]
        running = [one for one in running if one[1]]
        taken += ended
        if users:
            coming = deque(sorted([*coming, *(now + pauses.uniform(1000, 4000) for _ in ended)]))
    return taken, len(taken) / now


def one_after_the_other(costs: Costs, arrivals: Sequence[float]) -> list[float]:
    """Latencies without batching."""
    now, taken = 0.0, list[float]()
    for came in arrivals:
        now = max(now, came) + costs.whole(1)
        taken.append(now - came)
    return taken


def medians(latencies: Sequence[float], each: int = 12) -> list[float]:
    """Of `each` requests that ended one after the other, as `loadtests.batching_cost` takes them."""
    return [median(latencies[at : at + each]) for at in range(0, len(latencies) - each + 1, each)]


def poisson(rate: float, count: int = 1500) -> list[float]:
    draws, at, found = Random(5), 0.0, list[float]()
    for _ in range(count):
        at += draws.expovariate(rate)
        found.append(at)
    return found


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("load", [0.1, 0.3, 0.6])
def test_who_comes_on_their_own_wait_no_longer_than_without_batching(costs: Costs, load: float) -> None:
    arrivals = poisson(load / costs.whole(1))
    merged, alone = simulated(costs, arrivals)[0], one_after_the_other(costs, arrivals)
    assert fmean(merged) <= 1.01 * fmean(alone)
    assert fmean(medians(merged)) <= 1.01 * fmean(medians(alone))


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
def test_at_saturation_full_batches_run(costs: Costs) -> None:
    """24 users, of whom the first begin alone; the rest of what full batches would serve is that begin."""
    _, rate = simulated(costs, [0.0] * 24, users=True)
    assert rate >= 0.9 * 16 / costs.whole(16)


def test_how_often_requests_come_is_told_by_those_that_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of four takes 2.8 times one, which is worth it only for those who have yet to come."""
    now_ns = 10**13
    monkeypatch.setattr(joining, "perf_counter_ns", lambda: now_ns)
    first, *others = (local_job(str(number), "eager", ["x"], 8) for number in range(4))
    costs = given_costs({1: 10**6, 2: 4 * 10**6, 4: 28 * 10**5})

    def beginning(begun: int, since_ns: int) -> int:
        decides = Joining(ArrivingQueue(waiting=deque(others)), [1, 2, 4], costs)
        decides.begun(msgspec.structs.replace(first, sent_ns=now_ns - since_ns) for _ in range(begun))
        return decides.beginning_with(first)

    assert beginning(0, 0) == beginning(NEWEST_JOBS, since_ns=10**12) == 1
    assert beginning(FEWEST_JOBS - 1, since_ns=10**7) == 1
    assert beginning(FEWEST_JOBS, since_ns=10**7) == 4
