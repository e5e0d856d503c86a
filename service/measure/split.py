"""Splits a step into dispatch and kernels: on a CPU by samples of its thread, on CUDA by two clocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.measure.cases import Bench, Case
from service.measure.cpu_sampler import sample_steps
from service.records import SampleCounts
from service.statistics.boundedness import dispatch_share
from service.statistics.intervals import Interval

TIMED_SECONDS = 0.02
SAMPLED_SECONDS = 0.4
"""Of one step: some 400 samples."""


@dataclass(frozen=True, slots=True)
class DispatchSplit:
    """Dispatch and kernels of a step, in seconds.

    `sampled`, on a CPU: both are shares of the step's wall time, which they add up to. `measured`, on CUDA:
    dispatch ends when the call returns, kernel is timed by the device, and the two overlap.
    """

    dispatch: Interval
    kernel: Interval
    source: Literal["sampled", "measured"]


def sample_case(bench: Bench, case: Case, seconds: float = SAMPLED_SECONDS) -> SampleCounts | None:
    """The samples of `case`, which runs for so long; None where there are none. Raises SamplerError."""
    found = sample_steps(bench.sampler, case.call, case.phase, TIMED_SECONDS, seconds)
    return found.counts if found else None


def sampled_split(counts: SampleCounts, wall: Interval) -> DispatchSplit | None:
    """A step of `wall` seconds, of which `counts` were sampled; None without a sample of kernel or host.

    The ends of both parts have the share's interval, and the wall's as well.
    """
    share = dispatch_share(counts.kernel, counts.host, counts.unclassified)
    if share is None:
        return None
    samples = counts.kernel + counts.host
    return DispatchSplit(
        Interval(share.value * wall.value, share.low * wall.low, share.high * wall.high, samples),
        Interval(
            (1 - share.value) * wall.value, (1 - share.high) * wall.low, (1 - share.low) * wall.high, samples
        ),
        "sampled",
    )


def measured_split(dispatch: Interval, kernel: Interval) -> DispatchSplit:
    """On CUDA: the seconds until the call returns, beside the profiler's kernel seconds of a step."""
    return DispatchSplit(dispatch, kernel, "measured")
