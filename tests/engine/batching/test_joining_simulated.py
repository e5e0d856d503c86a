"""Whole arrivals, simulated with costs near measured ones: what joining by the sum of all waits comes to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from statistics import fmean, median

import msgspec
import pytest

from service.engine.batching import joining
from service.engine.batching.joining import FEWEST_JOBS, NEWEST_JOBS, CostsOfMode, Joining
from service.engine.batching.least_wait import worth_joining
from service.engine.batching.step_costs import Key, StepCosts
from service.engine.local_inbox import local_job
from tests.engine.batching.merging import ArrivingQueue, given_costs

TOKENS = 32


def costs_of(steps: Sequence[float], prefills: Sequence[float]) -> CostsOfMode:
    """Of milliseconds by bucket."""
    buckets = (1, 4, 16)
    known: dict[Key, int] = {
        ("mode", phase, bucket): round(1e6 * cost)
        for phase, costs in (("decode", steps), ("prefill", prefills))
        for bucket, cost in zip(buckets, costs, strict=True)
    }
    return CostsOfMode("mode", buckets, StepCosts(known))


COSTS = {
    "compiled": costs_of((1.28, 1.75, 3.2), (3.6, 9.0, 31.5)),
    "eager": costs_of((2.15, 2.7, 4.3), (5.0, 11.5, 37)),
    "compiled, long prompts": costs_of((1.28, 1.75, 3.7), (5.5, 17, 66)),
    "eager, long prompts": costs_of((2.15, 2.7, 4.8), (6.5, 19, 74)),
    "compiled, a fast hour": costs_of((0.64, 1.4, 3.0), (3.45, 8.6, 30.5)),
    "eager, a fast hour": costs_of((1.55, 2.3, 3.9), (4.4, 10.5, 34)),
    "compiled, another processor": costs_of((1.0, 2.7, 7.2), (3.0, 8.4, 21.6)),
}
"""Rounded from measurements; assumed are the prefills of the last, and of one and of four long prompts."""


def whole(costs: CostsOfMode, rows: int) -> int:
    """A batch of so many, from its prefill to its end."""
    prefill, step = costs.costs.of("mode", "prefill", rows), costs.step(rows)
    assert prefill is not None
    assert step is not None
    return prefill + (TOKENS - 1) * step


def simulated(
    costs: CostsOfMode, arrivals: Sequence[float], users: bool = False, count: int = 1500
) -> tuple[list[float], float]:
    """Latencies and requests a nanosecond, of `count` requests of one prompt; `users` send another each time
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
            new = [waiting.popleft() for _ in range(joined)]
            now += costs.prefill(joined, costs.most - len(running)) or 0
            begun += new
            running += [(came, TOKENS - 1) for came in new]
        now += costs.step(len(running)) or 0
        running = [(came, steps - 1) for came, steps in running]
        ended = [now - came for came, steps in running if not steps]
        running = [one for one in running if one[1]]
        taken += ended
        if users:
            coming = deque(sorted([*coming, *(now + pauses.uniform(1e6, 4e6) for _ in ended)]))
    return taken, len(taken) / now


def one_after_the_other(costs: CostsOfMode, arrivals: Sequence[float]) -> list[float]:
    """Latencies without batching."""
    now, taken = 0.0, list[float]()
    for came in arrivals:
        now = max(now, came) + whole(costs, 1)
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
def test_who_comes_on_their_own_wait_no_longer_than_without_batching(costs: CostsOfMode, load: float) -> None:
    arrivals = poisson(load / whole(costs, 1))
    merged, alone = simulated(costs, arrivals)[0], one_after_the_other(costs, arrivals)
    assert fmean(merged) <= 1.01 * fmean(alone)
    assert fmean(medians(merged)) <= 1.01 * fmean(medians(alone))


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
def test_at_saturation_full_batches_run(costs: CostsOfMode) -> None:
    """24 users, of whom the first begin alone; the rest of what full batches would serve is that begin."""
    _, rate = simulated(costs, [0.0] * 24, users=True)
    assert rate >= 0.93 * 16 / whole(costs, 16)


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
