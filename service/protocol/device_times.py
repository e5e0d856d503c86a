"""Parts of a mode's status: what a step takes on a CUDA device, and what the profiler costs."""

from __future__ import annotations

from typing import Literal

import msgspec

PROFILER_MATTERS = 1.05
"""Attaching the profiler matters where the whole interval of its ratio lies above this."""


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per step of `queued` calls that the device ran back to back: median of visits, 95 % interval.

    The profiler has no part in it. It contains what the device itself needs between two kernels.
    `upper_bound`: the device caught up with the host while it ran the queue, so that it idled in between.
    """

    phase: Literal["prefill", "decode"]
    batch: int
    seconds: float
    low: float
    high: float
    samples: int
    queued: int
    upper_bound: bool


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """Kernel seconds of one step: median of the newest profiled `samples`, with its 95 % interval.

    `low` and `high` are None where the samples are too few for an interval. The first samples are steps that
    warm-up profiled, later ones the median step of a profiled request.
    """

    phase: Literal["prefill", "decode"]
    batch: int
    seconds: float
    low: float | None
    high: float | None
    samples: int


class ProfilerCost(msgspec.Struct, frozen=True, kw_only=True):
    """Dispatch of a decode step at the smallest batch, after the profiler's first session over before it.

    [`low`, `high`] is the 95 % interval over `rounds` on either side (Welch, on logarithms). The two are
    minutes apart at most, but not interleaved: a session cannot be undone, so a machine that changed
    meanwhile is in the ratio too. The seconds are medians.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    before_seconds: float
    after_seconds: float

    @property
    def matters(self) -> bool:
        """Whether every later number of this mode is noticeably slower than without the profiler."""
        return self.low > PROFILER_MATTERS
