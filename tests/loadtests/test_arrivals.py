"""Open-loop cells: what they are called, and when their requests are due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.plan.cells import Arrivals, Cell, constant, due_times, poisson
from loadtests.run.schedule import group_name


def test_cells_of_before_keep_their_names_and_groups() -> None:
    """Rows and orders of folders that exist hang on them."""
    closed, opened = (
        Cell(mode="eager", batch_size=4, concurrency=2),
        Cell(mode="eager", batch_size=1, load=0.9),
    )
    assert (closed.name, closed.group) == ("eager b=4 short n=32 c=2", (4, "short", 32, 2, None))
    assert (opened.name, opened.group) == ("eager b=1 short n=32 load=0.9", (1, "short", 32, 1, 0.9))
    assert (closed.open_loop, opened.open_loop) == (False, True)


def test_open_loop_cells_are_named_and_grouped_by_their_arrivals() -> None:
    cells = {
        "rate=40/s": {"rate": 40.0},
        "rate=40/s constant": {"rate": 40.0, "arrivals": "constant"},
        "load=1.1": {"load": 1.1},
        "load=1.1 constant": {"load": 1.1, "arrivals": "constant"},
        "load=0.9 of search": {"load": 0.9, "share_of": "search"},
        "load=0.9 of search constant": {"load": 0.9, "share_of": "search", "arrivals": "constant"},
    }
    made = {name: Cell(mode="compiled", batch_size=1, **given) for name, given in cells.items()}  # type: ignore[arg-type]
    assert {name: cell.name for name, cell in made.items()} == {
        n: f"compiled b=1 short n=32 {n}" for n in cells
    }
    assert len({cell.group for cell in made.values()}) == len(cells)
    assert [group_name(cell.group) for cell in made.values()] == [f"b=1 short n=32 {name}" for name in cells]


@given(st.floats(0.01, 1000), st.integers(1, 50), st.text())
def test_arrivals_are_fixed_by_the_seed_and_never_go_back(rate: float, count: int, seed: str) -> None:
    due = poisson(rate, count, seed)
    assert len(due) == count
    assert due[0] == 0
    assert due == sorted(due) == poisson(rate, count, seed)


def test_arrivals_keep_their_rate_on_average() -> None:
    due = poisson(5.0, 4001, "a seed")
    assert due[-1] / 4000 == pytest.approx(1 / 5, rel=0.1)


@given(st.floats(0.01, 1000), st.integers(1, 50))
def test_constant_arrivals_are_one_gap_apart(rate: float, count: int) -> None:
    due = due_times("constant", rate, count, "any seed")
    assert due == constant(rate, count)
    assert due[0] == 0
    assert due[-1] == pytest.approx((count - 1) / rate)


@given(st.floats(0.01, 1000), st.floats(1.01, 10), st.integers(1, 50), st.text())
def test_arrivals_of_one_seed_are_the_same_at_every_rate_but_for_their_scale(
    rate: float, times: float, count: int, seed: str
) -> None:
    slow, fast = due_times("poisson", rate, count, seed), due_times("poisson", times * rate, count, seed)
    assert slow == pytest.approx([times * due for due in fast])


@pytest.mark.parametrize("arrivals", ["poisson", "constant"])
def test_a_rate_that_is_not_positive_is_refused(arrivals: Arrivals) -> None:
    with pytest.raises(ValueError, match="positive"):
        due_times(arrivals, 0.0, 3, "a seed")
