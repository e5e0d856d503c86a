"""How many of those that wait join: as many as make all wait least in sum, who runs counted three times."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.batching.joining import Joining
from service.engine.batching.least_wait import in_turns, worth_joining
from service.engine.batching.prefill_groups import cheapest_groups, least_prefills
from service.engine.local_inbox import local_job
from service.protocol.messages import Begun
from tests.engine.batching.merging import ArrivingQueue, Served, TinyEngine, given_costs

BUCKETS = (1, 4, 16)
STEPS = 32
DEAR_BUCKETS = {1: 100, 4: 280, 16: 720}
"""Of a compiled step, as measured: four rows cost 2.8 times one."""

CHEAP_BUCKETS = {1: 100, 4: 115, 16: 250}
"""As where dispatch dominates."""


@dataclass(frozen=True)
class Given:
    """Costs by bucket; a prefill takes as long as three steps. Without one: unknown."""

    by_bucket: Mapping[int, int | None]
    buckets: Sequence[int] = BUCKETS
    most: int = 16

    def step(self, rows: int) -> int | None:
        return self.by_bucket[next(bucket for bucket in BUCKETS if bucket >= rows)]

    def prefill(self, rows: int, room: int) -> int | None:
        step = self.step(rows)
        return None if step is None else 3 * step


@pytest.mark.parametrize(
    ("by_bucket", "running", "left", "waiting", "count"),
    [
        (DEAR_BUCKETS, 1, 16, [1], 0),  # two in a bucket of four: both would end later
        (DEAR_BUCKETS, 1, 16, [1, 1, 1], 0),  # nor four: one after the other is shorter
        (DEAR_BUCKETS, 1, 16, [1] * 4, 0),  # four in a bucket, once the first has ended
        (DEAR_BUCKETS, 1, 16, [3], 0),  # three gain, but not three times what one loses
        (DEAR_BUCKETS, 1, 16, [1] * 30, 15),
        (DEAR_BUCKETS, 4, 16, [1] * 12, 0),  # in fours, once these four have ended
        (DEAR_BUCKETS, 12, 16, [1] * 4, 0),
        (DEAR_BUCKETS, 12, 24, [1] * 4, 0),
        (DEAR_BUCKETS, 12, 32, [1] * 4, 4),  # with so many steps to go
        (DEAR_BUCKETS, 15, 16, [1], 0),  # fifteen would stand still for one
        (DEAR_BUCKETS, 15, 16, [1] * 9, 0),
        (DEAR_BUCKETS, 16, 16, [1], 0),  # no room
        (DEAR_BUCKETS, 1, 500, [1], 1),  # a short one does not wait for a long one
        (DEAR_BUCKETS, 0, 0, [1, 1], 1),  # nobody runs: the first begins alone
        (DEAR_BUCKETS, 0, 0, [1, 1, 1], 1),
        (DEAR_BUCKETS, 0, 0, [1] * 16, 4),
        (DEAR_BUCKETS, 2, 16, [], 0),
        (CHEAP_BUCKETS, 1, 26, [1], 1),
        (CHEAP_BUCKETS, 1, 16, [1], 0),  # sixteen steps are not worth standing still for three
        (CHEAP_BUCKETS, 0, 0, [1, 1], 2),
    ],
)
def test_so_many_join(
    by_bucket: dict[int, int | None], running: int, left: int, waiting: list[int], count: int
) -> None:
    assert worth_joining(running, left, waiting, STEPS, Given(by_bucket)) == count


@pytest.mark.parametrize(
    ("rate", "running", "left", "waiting", "count"),
    [
        (1 / 12_000, 0, 0, [1, 1, 1], 1),  # three in ten come while one runs: as if nobody came
        (1 / 12_000, 1, 16, [1], 0),
        (1 / 3_500, 0, 0, [1] * 16, 16),  # as many as one at a time can serve: steps cheaper per row
        (1 / 1_600, 0, 0, [1] * 24, 16),
        (1 / 1_600, 4, 16, [1] * 12, 12),
    ],
)
def test_the_more_come_the_more_run_together(
    rate: float, running: int, left: int, waiting: list[int], count: int
) -> None:
    """One request alone takes 3,500 here, and sixteen 25,200: 1,575 each."""
    assert worth_joining(running, left, waiting, STEPS, Given(DEAR_BUCKETS), rate) == count


@pytest.mark.parametrize(("dearer", "count"), [(124, 1), (126, 0)])
def test_one_joins_another_where_it_gains_three_times_what_that_one_loses(dearer: int, count: int) -> None:
    """A step of both takes less than 5/4 of a step of one; a prefill is next to nothing for so many steps."""
    costs = Given({1: 100, 4: dearer, 16: 1000})
    assert worth_joining(1, 5000, [1], 10_000, costs) == count


@pytest.mark.parametrize(("dearer", "count"), [(145, 2), (155, 1)])
def test_two_begin_together_where_a_step_of_both_takes_less_than_one_and_a_half(
    dearer: int, count: int
) -> None:
    """Neither runs yet, so each counts once."""
    costs = Given({1: 100, 4: dearer, 16: 1000})
    assert worth_joining(0, 0, [1, 1], 10_000, costs) == count


def test_where_costs_are_not_known_all_that_fit_join() -> None:
    assert worth_joining(1, 16, [1] * 9, STEPS, Given({1: 100, 4: None, 16: None})) == 9


@given(rows=st.integers(0, 70), group=st.integers(1, 16), begin=st.integers(0, 999), beside=st.integers(0, 4))
def test_what_runs_in_turns_ends_turn_after_turn(rows: int, group: int, begin: int, beside: int) -> None:
    """The sum turn by turn, each as long as its prefill and its steps."""
    costs = Given(CHEAP_BUCKETS)
    turn = 3 * costs.step(group) + STEPS * costs.step(min(16, group + beside))  # type: ignore[operator]
    ends = [begin + (row // group + 1) * turn for row in range(rows)]
    assert in_turns(rows, group, begin, beside, STEPS, costs, 1) == (sum(ends), max(ends, default=begin))


@given(
    st.integers(0, 8),
    st.integers(0, STEPS),
    st.integers(0, 20),
    st.lists(st.integers(1, 999), min_size=3, max_size=3),
)
def test_never_more_than_fit_and_whoever_finds_nobody_begins(
    running: int, left: int, waiting: int, costs: list[int]
) -> None:
    by_bucket = dict(zip(BUCKETS, costs, strict=True))
    count = worth_joining(running, left, [1] * waiting, STEPS, Given(by_bucket))
    assert count <= min(waiting, 16 - running)
    assert count > 0 or running or not waiting


@pytest.fixture(scope="module")
def engine() -> TinyEngine:
    return TinyEngine()


def begun(served: Served) -> list[list[str]]:
    return [message.ids for message in served.queue.sent if isinstance(message, Begun)]


DEAR = {1: 10**12, 2: 3 * 10**12, 4: 12 * 10**11}
"""Two are dearer than one after the other, and four are not."""

ALL_ALIKE = dict.fromkeys(DEAR, 10)


def test_one_that_would_make_steps_dearer_waits_for_its_turn_and_several_do_not(engine: TinyEngine) -> None:
    jobs = [local_job(name, "inference_mode", ["x"], 8, ignore_eos=True) for name in "abcdef"]
    served = engine.merged({0: jobs[:1], 2: jobs[1:2]}, costs=DEAR)
    assert begun(served) == [["a"], ["b"]]
    assert list(served.outcomes) == ["a", "b"]
    served = engine.merged({0: jobs[:1], 2: jobs[1:2], 4: jobs[2:4]}, costs=DEAR, prefills=ALL_ALIKE)
    assert begun(served) == [["a"], ["b", "c"], ["d"]]  # prefilled in buckets of the three free rows
    assert served.tokens["b"] == engine.alone(jobs[1])


@pytest.mark.parametrize(
    ("prefills", "groups"),
    [
        (ALL_ALIKE, [["a", "b", "c", "d"]]),  # as where dispatch decides
        ({1: 10, 2: 15, 4: 40}, [["a", "b"], ["c", "d"]]),
        ({1: 10, 2: 21, 4: 42}, [["a"], ["b"], ["c"], ["d"]]),
    ],
)
def test_those_that_begin_together_are_prefilled_in_the_groups_that_are_cheapest(
    engine: TinyEngine, prefills: dict[int, int], groups: list[list[str]]
) -> None:
    jobs = [local_job(name, "inference_mode", ["x"], 4, ignore_eos=True) for name in "abcd"]
    served = engine.merged({0: jobs}, costs=dict.fromkeys(DEAR, 1000), prefills=prefills)
    assert begun(served) == groups
    assert {name: served.tokens[name] for name in "abcd"} == {job.id: engine.alone(job) for job in jobs}
    timings = {name: outcome.timings for name, outcome in served.outcomes.items() if outcome.timings}
    before = 0.0
    assert served.shapes.count((4, 1)) == 3  # their decode steps are shared by all
    for group in groups:
        assert all(timings[name].queue_seconds >= before for name in group)
        before += timings[group[0]].prefill.wall_seconds


def test_a_request_of_several_prompts_is_prefilled_at_once_and_where_it_finds_room(
    engine: TinyEngine,
) -> None:
    """One before it would leave three rows, which is no bucket."""
    jobs = [
        local_job(name, "inference_mode", ["x"] * rows, 4, ignore_eos=True)
        for name, rows in (("a", 1), ("b", 3))
    ]
    served = engine.merged({0: jobs}, costs=dict.fromkeys(DEAR, 1000), prefills={1: 10, 2: 25, 4: 60})
    assert begun(served) == [["a", "b"]]
    assert {name: served.tokens[name] for name in "ab"} == {job.id: engine.alone(job) for job in jobs}


def prefill_cost(rows: list[int], groups: Sequence[int], free: int, costs: dict[int, int]) -> float:
    """Of these groups, each in the smallest bucket that holds it; infinite where one finds no room."""
    total, first = 0.0, 0
    for count in groups:
        joined = sum(rows[first : first + count])
        bucket = min(bucket for bucket in costs if bucket >= joined)
        total += costs[bucket] if bucket <= free else inf
        free, first = free - joined, first + count
    return total


@given(
    st.dictionaries(st.integers(1, 6), st.integers(1, 99), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.integers(0, 6),
)
def test_no_groups_that_find_room_are_cheaper(costs: dict[int, int], rows: list[int], more: int) -> None:
    costs, free = dict(sorted({sum(rows): 150, **costs}.items())), sum(rows) + more
    groups = cheapest_groups(rows, free, tuple(costs.items()))
    assert sum(groups) == len(rows)
    cuts = (combinations(range(1, len(rows)), number) for number in range(len(rows)))
    every = ([b - a for a, b in pairwise([0, *cut, len(rows)])] for some in cuts for cut in some)
    least = min(prefill_cost(rows, way, free, costs) for way in every)
    assert prefill_cost(rows, groups, free, costs) == least < inf


def test_who_finds_no_room_is_a_group_and_the_question_ends() -> None:
    assert cheapest_groups([1, 2], 2, ((1, 5), (4, 12))) == [1, 1]
    assert cheapest_groups([4, 1], 1, ((1, 5), (4, 12))) == [1, 1]


def test_with_a_bucket_of_one_there_is_always_room_and_the_estimate_is_what_is_run() -> None:
    by_bucket = ((1, 5), (4, 12), (16, 40))
    for rows in range(17):
        groups = cheapest_groups([1] * rows, 16, by_bucket)
        assert sum(groups) == rows
        costs = [next(cost for bucket, cost in by_bucket if bucket >= count) for count in groups]
        assert sum(costs) == least_prefills(16, by_bucket)[rows]


def test_another_request_of_the_same_id_is_another_question() -> None:
    """Ids are the clients' own, and unique only among those that have not ended."""

    def asked(name: str, count: int, sent_ns: int) -> int:
        job = msgspec.structs.replace(local_job(name, "eager", ["x"], count), sent_ns=sent_ns)
        queue.waiting = deque([job])
        return joining.beside(1, lambda: float(count), "eager")

    queue = ArrivingQueue()
    joining = Joining(queue, [1, 4], given_costs({1: 100, 4: 110}, {1: 2000, 4: 2000}))
    assert asked("same", 4, sent_ns=1) == 0
    assert asked("same", 400, sent_ns=2) == 1


def test_a_short_request_does_not_wait_for_a_long_one(engine: TinyEngine) -> None:
    jobs = [
        local_job(name, "inference_mode", ["x"], count, ignore_eos=True)
        for name, count in (("a", 60), ("b", 2))
    ]
    served = engine.merged({0: jobs[:1], 2: jobs[1:]}, costs={1: 1000, 2: 3000, 4: 4000})
    assert list(served.outcomes) == ["b", "a"]
    assert served.tokens["a"] == engine.alone(jobs[0])


def test_who_runs_goes_on_however_many_come_that_end_with_their_prefill(engine: TinyEngine) -> None:
    """They leave their rows at once, so that free rows alone bound nothing."""
    long = local_job("long", "inference_mode", ["x"], 6, ignore_eos=True)
    short = [local_job(str(number), "inference_mode", ["x"], 1, ignore_eos=True) for number in range(40)]
    costs, prefills = dict.fromkeys(DEAR, 1000), dict.fromkeys(DEAR, 1)
    served = engine.merged({0: [long], 1: short}, costs=costs, prefills=prefills)
    assert list(served.outcomes).index("long") <= 5 * 3  # five steps, before each at most three of them
    assert served.tokens["long"] == engine.alone(long)


def test_a_window_merges_whatever_it_costs(engine: TinyEngine) -> None:
    jobs = [local_job(name, "inference_mode", ["x"], 3, ignore_eos=True) for name in "ab"]
    assert begun(engine.merged({0: jobs}, "window", costs=DEAR, prefills=ALL_ALIKE)) == [["a", "b"]]
    assert begun(engine.merged({0: jobs}, "continuous", costs=DEAR, prefills=ALL_ALIKE)) == [["a"], ["b"]]
