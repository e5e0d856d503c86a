"""The kernels of steps by name, on traces made by hand: lost kernels, short ones, none."""

from __future__ import annotations

import pytest

from service.measure.step_costs import KernelTable, table_of
from service.step.trace import Event
from tests.step.made import kernel


def step(*lengths: float, name: str = "a_kernel") -> list[Event]:
    """The kernels of one step, 100 µs apart."""
    return [kernel(name, 100.0 * place, 1, length) for place, length in enumerate(lengths)]


MIXED = [*step(3, 3, name="small"), kernel("large", 500.0, 1, 30)]


def test_no_kernels_are_unknown_and_not_zero() -> None:
    assert table_of([[], []]) is None


def table(by_step: list[list[Event]]) -> KernelTable:
    found = table_of(by_step)
    assert found is not None
    return found


def test_rows_are_per_step_and_the_longest_first() -> None:
    found = table([MIXED, MIXED])
    assert [(row.name, row.per_step) for row in found.rows] == [("large", 1), ("small", 2)]
    assert [row.seconds for row in found.rows] == pytest.approx([30e-6, 6e-6])
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert found.kernels == 3
    assert found.busy_seconds == pytest.approx(36e-6)


def test_kernels_whose_long_names_differ_only_at_the_end_are_told_apart() -> None:
    common = "void at::native::vectorized_elementwise_kernel<4, " + "std::array<char*, 3ul>, " * 10
    first, second = (step(*lengths, name=common + end) for lengths, end in (((4, 4), "Add>"), ((2,), "Mul>")))
    found = table([first + second])
    assert [(row.name.removeprefix(common), row.per_step) for row in found.rows] == [("Add>", 2), ("Mul>", 1)]


def test_steps_that_lost_kernels_are_left_out_and_counted() -> None:
    found = table([step(8, 8), step(8, 8, 8), step(8, 8, 8), []])
    assert (found.steps, found.left_out, found.kernels) == (2, 2, 3)
