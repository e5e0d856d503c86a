"""The rule that cuts a visit, against simulated queues with a known load."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from random import Random
from statistics import median

import pytest

from loadtests.plan.cells import Arrivals, due_times
from loadtests.plan.presets import make_plan
from loadtests.run.events import Assignment
from loadtests.run.requests import LEAST_ANSWERS, GrowingQueue, rows_at_once

USERS = 64

Service = Callable[[], float]
"""Gives the service time of the next request."""


def in_flight(
    due: Sequence[float], service: Service, room: float = math.inf, at_once: int = 1
) -> Iterator[int]:
    """What each arrival finds in flight: so many servers `at_once`, first come first served, refusing above
    `room`; each takes so many times as long as one alone.
    """
    ends, free = deque[float](), [0.0] * at_once
    for now in due:
        while ends and ends[0] <= now:
            ends.popleft()
        yield len(ends)
        if len(ends) < room:
            ends.append(max(now, heappop(free)) + at_once * service())
            heappush(free, ends[-1])
            ends = deque(sorted(ends)) if at_once > 1 else ends


def cut_after(
    load: float,
    requests: int,
    seed: int,
    service: Service = lambda: 1.0,
    arrivals: Arrivals = "poisson",
    room: float = math.inf,
    at_once: int = 1,
) -> tuple[int | None, str]:
    """After how many arrivals a visit at `load` of the capacity is cut, and why; None where it is not."""
    queue = GrowingQueue(requests, USERS, at_once)
    for found in in_flight(due_times(arrivals, load, requests, str(seed)), service, room, at_once):
        if reason := queue.arrival(found):
            return queue.accepted, reason
    return None, ""


def share_cut(load: float, requests: int, visits: int, scatter: float = 0.0, at_once: int = 1) -> float:
    random = Random(f"{load} {requests}")

    def service() -> float:
        return math.exp(random.gauss(-(scatter**2) / 2, scatter)) if scatter else 1.0

    found = [cut_after(load, requests, seed, service, at_once=at_once)[0] for seed in range(visits)]
    return sum(after is not None for after in found) / visits


@pytest.mark.parametrize(("requests", "visits"), [(36, 2000), (60, 1500), (200, 800)])
@pytest.mark.parametrize("load", [0.5, 0.9])
def test_below_saturation_fewer_than_one_visit_in_a_hundred_is_cut(
    load: float, requests: int, visits: int
) -> None:
    assert share_cut(load, requests, visits) < 0.01


def test_service_times_that_scatter_do_not_cut_a_stable_queue() -> None:
    assert share_cut(0.9, 60, 1000, scatter=0.2) < 0.01


@pytest.mark.parametrize("at_once", [4, 16])
def test_a_service_that_merges_is_not_cut_for_the_requests_that_it_runs_together(at_once: int) -> None:
    assert share_cut(0.9, 200, 400, scatter=0.1, at_once=at_once) < 0.01
    assert share_cut(2.0, 400, 100, at_once=at_once) > 0.9


def test_the_rule_for_one_request_at_a_time_would_cut_it_below_its_capacity() -> None:
    for seed in range(30):
        found = in_flight(due_times("poisson", 0.9, 200, str(seed)), lambda: 1.0, at_once=16)
        one_at_a_time = GrowingQueue(200, USERS)
        if any(one_at_a_time.arrival(each) for each in found):
            return
    pytest.fail("no visit was cut")


def test_a_service_runs_as_many_together_as_its_largest_bucket_where_it_merges() -> None:
    engine = {"batch_buckets": [1, 4, 16]}
    assert rows_at_once(engine) == rows_at_once({**engine, "batching": "off"}) == 1
    assert rows_at_once({**engine, "batching": "window"}) == 16
    plan = make_plan("quick", modes=["eager"])
    assignment = Assignment(run="r", url="u", folder="f", plan=plan, prompt_file="p", rows_at_once=16)
    assert [assignment.at_once(size) for size in (1, 4, 16, 32)] == [16, 4, 1, 1]


def test_the_more_load_the_more_visits_are_cut_and_the_sooner() -> None:
    shares = [share_cut(load, 200, 300) for load in (1.0, 1.2, 2.0)]
    assert shares[0] < 0.1 < shares[1] < shares[2] == 1.0
    after = {load: [cut_after(load, 1000, seed)[0] or 1000 for seed in range(100)] for load in (1.2, 2.0)}
    assert median(after[2.0]) < 50 < median(after[1.2]) < 300


def test_at_equal_gaps_a_queue_below_saturation_is_never_cut_and_one_past_it_is() -> None:
    assert cut_after(0.99, 1000, 1, arrivals="constant") == (None, "")
    after, reason = cut_after(2.0, 1000, 1, arrivals="constant")
    assert after is not None
    assert after < 60
    assert "at least 1.9" in reason


def test_a_stall_of_the_service_is_no_growing_queue() -> None:
    times = iter([40.0, *[0.2] * 500])
    assert cut_after(0.5, 200, 3, service=lambda: next(times)) == (None, "")


def test_a_queue_that_refuses_more_does_not_grow() -> None:
    """Of three arrivals two are refused; what is in flight stays as it is."""
    assert cut_after(3.0, 200, 1, room=5) == (None, "")


def test_a_visit_is_cut_before_a_request_would_wait_for_the_load_generator() -> None:
    """Nothing is answered: too few answers for a judgement, but no room either."""
    after, reason = cut_after(1.0, 200, 1, service=lambda: 1e9)
    assert after == USERS
    assert "as many as the load generator can have" in reason


def test_nothing_is_judged_before_some_answers() -> None:
    queue = GrowingQueue(200, USERS)
    assert not any(queue.arrival(found) for found in range(USERS))
    answered = GrowingQueue(200, USERS)
    found = [*range(40), 41 - LEAST_ANSWERS, 41 - LEAST_ANSWERS]  # one answer too few, then enough
    assert [answered.arrival(each) is None for each in found] == [True] * 41 + [False]
