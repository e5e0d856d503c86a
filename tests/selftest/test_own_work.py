"""The engine's own work between two steps, from the instants of their calls."""

from __future__ import annotations

from itertools import accumulate

import pytest

from service.engine.job_result import JobResult
from service.selftest.own_work import gaps_seconds


def test_own_work_is_the_mean_gap_between_two_looks_for_cancellations_less_the_wait_for_the_device() -> None:
    begins = [0, 110_000, 230_000, 340_000, 460_000]
    calls = [(begin, begin + 100_000) for begin in begins]
    assert gaps_seconds(calls, JobResult()) == pytest.approx(15e-6)
    waiting = JobResult()
    waiting.decode.wait = [5_000] * 5
    assert gaps_seconds(calls, waiting) == pytest.approx(10e-6)


def test_a_look_in_every_fifth_gap_counts_a_fifth_in_own_work() -> None:
    gaps = [10_000, 10_000, 10_000, 10_000, 60_000] * 6
    step = 1_980_000
    begins = [0, *accumulate(gap + step for gap in gaps)]
    calls = [(begin, begin + step) for begin in begins]
    assert gaps_seconds(calls, JobResult()) == pytest.approx(20e-6)
