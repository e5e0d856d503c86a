"""Kernels by window, by id and by name, on traces made by hand: wrong ids, lost kernels, overlap, none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from service.anatomy.operators.show_kernels import show_kernels
from service.measure.fenced_kernels import device_work, kernels_by_id, kernels_by_window
from service.measure.kernel_table import KernelTable, table_of
from service.step.trace import Event
from tests.support.kineto import kernel, launch, mark

NULL = 2e-6


def replays(ids: list[int], kernels: int = 3) -> list[Event]:
    """A replay per id, 100 µs apart: its launch has the id of its place, its kernels that of `ids`."""
    events: list[Event] = []
    for place, correlation in enumerate(ids):
        begin = 100.0 * place
        events += [mark(begin, 20), launch(begin + 5, place + 1, "cudaGraphLaunch")]
        events += [kernel(begin + 10 + 10 * n, 8, correlation, f"kernel_{n}") for n in range(kernels)]
    return events


def test_right_ids_and_windows_find_the_same_kernels() -> None:
    events = replays([1, 2, 3])
    assert kernels_by_id(events) == kernels_by_window(events)
    assert [len(kernels) for kernels in kernels_by_window(events)] == [3, 3, 3]


def test_wrong_ids_lose_kernels_and_windows_do_not() -> None:
    events = replays([1, 1, 1])
    assert [len(kernels) for kernels in kernels_by_id(events)] == [9, 0, 0]
    assert [len(kernels) for kernels in kernels_by_window(events)] == [3, 3, 3]


def test_a_kernel_that_begins_after_its_mark_ended_still_belongs_to_its_step() -> None:
    events = [mark(0, 5), launch(1, 1), kernel(50, 8, 1), mark(100, 5)]
    assert [len(kernels) for kernels in kernels_by_window(events)] == [1, 0]


def test_work_before_the_first_mark_belongs_to_no_step() -> None:
    assert kernels_by_window([kernel(0, 5), mark(10, 5), kernel(12, 5)]) == [[kernel(12, 5)]]


def test_kernels_that_overlap_are_counted_once() -> None:
    work = device_work([kernel(0, 10), kernel(5, 10, stream=8), kernel(6, 2, stream=9), kernel(30, 5)])
    assert work is not None
    assert work.kernels == 4
    assert work.busy_seconds == pytest.approx(20e-6)
    assert work.span_seconds == pytest.approx(35e-6)


def test_no_kernels_are_unknown_and_not_zero() -> None:
    assert device_work([]) is None
    assert table_of([[], []], NULL) is None


def table(by_step: list[list[Event]], null: float | None = NULL) -> KernelTable:
    found = table_of(by_step, null)
    assert found is not None
    return found


def test_rows_are_per_step_and_the_longest_first() -> None:
    step = [kernel(0, 3, name="small"), kernel(5, 3, name="small"), kernel(10, 30, name="large")]
    found = table([step, step])
    assert [(row.name, row.per_step) for row in found.rows] == [("large", 1), ("small", 2)]
    assert [row.seconds for row in found.rows] == pytest.approx([30e-6, 6e-6])
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert found.kernels == 3
    assert found.busy_seconds == pytest.approx(36e-6)


def test_the_share_near_the_null_kernel_is_that_of_short_kernels() -> None:
    step = [kernel(0, 3, name="small"), kernel(5, 3, name="small"), kernel(10, 30, name="large")]
    found = table([step])
    assert [row.null_times for row in found.rows] == pytest.approx([15, 1.5])
    assert found.near_null_share == pytest.approx(6 / 36)


def test_without_a_null_kernel_nothing_is_said_of_it() -> None:
    found = table([[kernel(0, 3)]], None)
    assert found.near_null_share is None
    assert found.rows[0].null_times is None


def test_steps_that_lost_kernels_are_left_out_and_counted() -> None:
    by_step = kernels_by_window(replays([1, 2, 3]))
    found = table([by_step[0][1:], *by_step[1:]])
    assert (found.steps, found.left_out, found.kernels) == (2, 1, 3)


def test_a_step_without_kernels_is_left_out_too() -> None:
    by_step = kernels_by_window(replays([1, 2]))
    assert table([[], *by_step]).left_out == 1


def test_the_table_is_printed_with_its_floor_and_what_was_left_out() -> None:
    out = io.StringIO()
    by_step = kernels_by_window(replays([1, 2, 3]))
    show_kernels(table([by_step[0][1:], *by_step[1:]]), Console(file=out, width=140))
    text = out.getvalue()
    assert "3 kernels per step, 24.0 µs" in text
    assert "kernel_0" in text
    assert "null kernel (2.00 µs" in text
    assert "1 of 3 profiled steps" in text
