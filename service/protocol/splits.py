"""Samples of the engine's thread within steps, and the split of a step that they give. On a CPU only."""

from __future__ import annotations

from typing import Literal

import msgspec

Side = Literal["kernel", "host", "system", "unclassified"]
SIDES: tuple[Side, ...] = ("kernel", "host", "system", "unclassified")


class SampleCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many samples were in a kernel, in the host's code, in the operating system, in code of no rule."""

    kernel: int = 0
    host: int = 0
    system: int = 0
    unclassified: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.kernel + self.host + self.system + self.unclassified

    def __add__(self, other: SampleCounts) -> SampleCounts:
        return SampleCounts(
            kernel=self.kernel + other.kernel,
            host=self.host + other.host,
            system=self.system + other.system,
            unclassified=self.unclassified + other.unclassified,
        )

    def __sub__(self, other: SampleCounts) -> SampleCounts:
        return SampleCounts(
            kernel=self.kernel - other.kernel,
            host=self.host - other.host,
            system=self.system - other.system,
            unclassified=self.unclassified - other.unclassified,
        )


class StepSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one phase and batch bucket, as its newest samples have it.

    `dispatch_share` of a step's wall time is dispatch, the rest kernel; [`low`, `high`] holds the truth:
    counting, classes and the sampler's own effect added up. `step_seconds` is the mean wall time of the
    newest steps, `newest` the samples that the share rests on, `all` every one since the engine started.
    """

    phase: Literal["prefill", "decode"]
    batch: int
    dispatch_share: float
    low: float
    high: float
    step_seconds: float
    newest: SampleCounts
    all: SampleCounts

    @property
    def dispatch_seconds(self) -> float:
        """Of one step."""
        return self.dispatch_share * self.step_seconds

    @property
    def kernel_seconds(self) -> float:
        """Of one step: the rest."""
        return (1 - self.dispatch_share) * self.step_seconds
