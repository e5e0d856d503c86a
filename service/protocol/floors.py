"""Dispatch floors of steps: what the hollow twin and the sampled stacks say of one."""

from __future__ import annotations

from typing import Literal

import msgspec


class StackShare(msgspec.Struct, frozen=True, kw_only=True):
    """Which share of a real step's samples lay in kernels, by `samples` of the thread's native stacks.

    `kernel_share` is the mean over rounds, [`low`, `high`] its 95 % interval; `step_seconds` the median step,
    timed without being sampled. `dispatch_seconds` is the mean over rounds of a round's step times its share
    outside of kernels, with the 95 % interval of that: it holds the scatter of the steps as well. Samples of
    functions without a name count as dispatch, and at `high` and `dispatch_low_seconds` as kernel.
    """

    kernel_share: float
    low: float
    high: float
    samples: int
    step_seconds: float
    dispatch_seconds: float
    dispatch_low_seconds: float
    dispatch_high_seconds: float


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """Dispatch of one step of the hollow twin: median, and a 95 % interval of it, in seconds.

    `source`: sampled at this batch, or at the smallest one, which stands for all: always in prefill, and in
    decode where stacks tell the batches apart. `stacks` is the other witness, of the real step; None where it
    is not allowed here or not taken yet.
    """

    phase: Literal["prefill", "decode"]
    batch: int
    seconds: float
    low: float
    high: float
    samples: int
    source: Literal["calibrated", "smallest_batch"]
    stacks: StackShare | None = None

    def dispatch(self) -> tuple[float, float, float]:
        """Seconds of dispatch per step, and the interval that neither witness rules out.

        The value is that of the stacks, which are of the real step, and without them the twin's; the interval
        goes from the least to the most of both.
        """
        if self.stacks is None:
            return self.seconds, self.low, self.high
        return (
            self.stacks.dispatch_seconds,
            min(self.low, self.stacks.dispatch_low_seconds),
            max(self.high, self.stacks.dispatch_high_seconds),
        )
