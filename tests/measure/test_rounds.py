"""Interleaved rounds, the ratio of two arms, the cores of a measurement, and its time off them."""

from __future__ import annotations

import gc
import os

import pytest

from service.measure import rounds
from service.measure.rounds import OffCpuTime, isolated, paired_median_ratio


def test_a_disturbed_round_does_not_widen_a_median_ratio() -> None:
    quiet = [1.0 + number / 1000 for number in range(20)]
    disturbed = [2.0 * value for value in quiet]
    disturbed[7] = 90.0
    ratio = paired_median_ratio(disturbed, quiet)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_share_off_the_cpu_is_of_all_counted_blocks_since_it_was_last_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall_ns, cpu_ns = iter([0, 100, 500, 800]), iter([0, 90, 400, 610])
    monkeypatch.setattr(rounds, "perf_counter_ns", lambda: next(wall_ns))
    monkeypatch.setattr(rounds, "thread_time_ns", lambda: next(cpu_ns))
    off_cpu = OffCpuTime()
    for _ in range(2):
        with off_cpu.counted():
            pass
    assert off_cpu.take_share() == pytest.approx(1 - 300 / 400)
    assert off_cpu.take_share() == 0.0


def test_an_isolated_block_runs_on_its_cores_and_the_threads_return_to_theirs() -> None:
    before = os.sched_getaffinity(0)
    gc.unfreeze()  # what was imported, which the collection of tests froze
    try:
        with isolated([min(before)]):
            assert os.sched_getaffinity(0) == {min(before)}
            assert gc.get_freeze_count() > 0
        assert os.sched_getaffinity(0) == before
    finally:
        gc.unfreeze()
