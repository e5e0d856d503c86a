"""What several visits say of a step's split, and what samples without a name add to its interval."""

from __future__ import annotations

import pytest

from service.engine.stack_shares import _share
from service.step.native.stacks import SampledSteps


def visits(unnamed: int) -> list[SampledSteps]:
    """Steps of 2 ms, of whose 100 samples 40 are kernel and so many are host for want of a name."""
    return [SampledSteps(0.4, 100, 2e-3, unnamed) for _ in range(8)]


def test_samples_without_a_name_are_host_in_the_value_and_kernel_at_one_end() -> None:
    named, nameless = _share(visits(0)), _share(visits(45))
    assert nameless.kernel_share == named.kernel_share == pytest.approx(0.4)
    assert nameless.dispatch_seconds == named.dispatch_seconds == pytest.approx(1.2e-3)
    assert (named.high, nameless.high) == (pytest.approx(0.4), pytest.approx(0.85))
    assert nameless.low == named.low
    assert nameless.dispatch_low_seconds == pytest.approx(0.3e-3)
    assert nameless.dispatch_high_seconds == named.dispatch_high_seconds


def test_no_more_than_all_of_a_step_is_kernel() -> None:
    assert _share(visits(60)).high == 1.0
    assert _share(visits(60)).dispatch_low_seconds == 0.0
