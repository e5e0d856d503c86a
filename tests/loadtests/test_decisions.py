"""Which groups of a plan go on after a look."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from random import Random

import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.plan.presets import make_plan
from loadtests.run.events import InterimCheckEnded
from loadtests.run.schedule import Latencies, group_name, rounds

CLEAR = {"eager": 2.2, "no_grad": 1.7, "inference_mode": 1.5, "compiled": 1.0, "reduce-overhead": 0.8}


def run(
    plan: Plan, true: Mapping[int, Mapping[str, float]], scatter: float = 0.01, seed: int = 1
) -> tuple[list[list[str]], list[InterimCheckEnded]]:
    """The cells visited by round and the looks, where a mode takes the `true` time of its batch size."""
    random = Random(seed)
    latencies, looked, visited = Latencies(), list[InterimCheckEnded](), list[list[str]]()
    for number, cells in rounds(plan, latencies, looked.append):
        visited.append([cell.name for cell in cells])
        drift = 0.3 * math.sin(number)
        for cell in cells:
            for _ in range(cell.requests):
                seconds = true[cell.batch_size][cell.mode] * math.exp(drift + random.gauss(0, scatter))
                latencies.add(cell.name, number, seconds)
    return visited, looked


def test_a_plan_whose_modes_are_far_apart_ends_at_its_first_look() -> None:
    visited, looked = run(make_plan("quick"), {1: CLEAR, 4: CLEAR, 16: CLEAR})
    assert len(visited) == 8
    assert [(one.look.round, one.look.undecided, one.requests) for one in looked] == [(8, [], 0)]


def test_only_the_undecided_batch_goes_on_with_all_its_cells() -> None:
    close = CLEAR | {"compiled": 0.8}
    plan = make_plan("quick")
    visited, looked = run(plan, {1: CLEAR, 4: close, 16: CLEAR}, scatter=0.06)
    mine = sorted(cell.name for cell in plan.cells if cell.batch_size == 4)
    assert looked[0].look.undecided == ["b=4 short n=32 c=1"]
    assert looked[0].requests == 4 * 2 * 6
    assert len(visited) > 8
    assert all(sorted(names) == mine for names in visited[8:])


def test_a_group_that_stays_undecided_ends_at_the_cap_and_is_named() -> None:
    close = CLEAR | {"compiled": 0.82}
    visited, looked = run(make_plan("quick"), {1: close, 4: CLEAR, 16: CLEAR}, scatter=0.3)
    assert len(visited) == 16
    assert "b=1 short n=32 c=1" in looked[-1].look.undecided
    assert looked[-1].requests == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_group_that_was_decided_does_not_come_back(seed: int) -> None:
    close = CLEAR | {"compiled": 0.82}
    _, looked = run(make_plan("quick"), {1: close, 4: close, 16: close}, scatter=0.08, seed=seed)
    undecided = [set(one.look.undecided) for one in looked]
    assert all(later <= earlier for earlier, later in pairwise(undecided))


def test_open_loops_and_other_conditions_do_not_ask_for_more_rounds() -> None:
    plan = make_plan("full")
    true = dict.fromkeys(plan.batch_sizes, CLEAR)
    visited, _ = run(plan, true)
    assert len(visited) == plan.rounds
    assert set(visited[0]) == {cell.name for cell in plan.cells}


def test_a_plan_without_a_closed_loop_runs_its_rounds() -> None:
    plan = Plan(
        preset="own", seed=1, rounds=3, rounds_most=9, cells=(Cell(mode="eager", batch_size=1, load=0.5),)
    )
    visited, looked = run(plan, {1: CLEAR})
    assert len(visited) == 3
    assert looked[-1].look.undecided == []


def test_groups_are_named_by_their_conditions() -> None:
    assert group_name(Cell(mode="eager", batch_size=4, concurrency=2).group) == "b=4 short n=32 c=2"
    assert group_name(Cell(mode="eager", batch_size=4, load=0.5).group) == "b=4 short n=32 load=0.5"
