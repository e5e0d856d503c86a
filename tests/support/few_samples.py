"""Floors from as few samples as an interval needs, for tests that start engines and are not about floors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.engine import stack_shares
from service.step import calibration

TWIN_SAMPLES = 6
"""Fewer have no interval of the median."""

VISITS = 2
"""Of each step, whose stacks are sampled: one alone has no interval."""


@contextmanager
def few_samples() -> Iterator[None]:
    """Within, an engine of this process takes TWIN_SAMPLES of each twin, and VISITS to each step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "FIRST_SAMPLES", TWIN_SAMPLES)
        patch.setattr(stack_shares, "ROUNDS", VISITS)
        yield
