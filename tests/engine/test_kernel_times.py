"""Kernel times per step: samples of warm-up and of requests, their median and its interval."""

from __future__ import annotations

import pytest

from service.engine.profiler import SAMPLES_KEPT, KernelTimes


def test_what_was_never_seen_is_unknown_and_not_0() -> None:
    times = KernelTimes()
    times.add("eager", "decode", 1, [None, None])
    assert times.per_step("eager", "decode", 1) is None
    assert times.of_mode("eager") == []


def test_steps_whose_kernels_were_not_seen_are_left_out_of_the_median() -> None:
    times = KernelTimes()
    times.add("eager", "decode", 1, [None, 2e-4, 4e-4, None, 3e-4])
    assert times.per_step("eager", "decode", 1) == 3e-4
    assert times.per_step("eager", "prefill", 1) is None
    assert times.per_step("compiled", "decode", 1) is None


def test_eight_steps_of_warm_up_have_an_interval_and_five_have_none() -> None:
    times = KernelTimes()
    times.add("eager", "decode", 1, [number * 1e-5 for number in range(1, 9)])
    times.add("eager", "prefill", 4, [1e-5] * 5)
    decode, prefill = times.of_mode("eager")
    assert (decode.phase, decode.batch, decode.samples) == ("decode", 1, 8)
    assert (decode.seconds, decode.low, decode.high) == pytest.approx((4.5e-5, 1e-5, 8e-5))
    assert (prefill.phase, prefill.batch, prefill.samples) == ("prefill", 4, 5)
    assert prefill.low is prefill.high is None


def test_requests_replace_what_warm_up_had_learnt() -> None:
    times = KernelTimes()
    times.add("eager", "decode", 1, [1e-4] * 8)
    for _ in range(SAMPLES_KEPT):
        times.add("eager", "decode", 1, [2e-4])
    (found,) = times.of_mode("eager")
    assert (found.seconds, found.low, found.samples) == (2e-4, 2e-4, SAMPLES_KEPT)
