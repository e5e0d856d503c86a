"""What a step costs: its dispatch and kernels, and its kernels by name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import msgspec

from service.measure.cases import AnyBench, AnyCase
from service.measure.cpu_sampler import sample_steps
from service.measure.rounds import Log
from service.records import SampleCounts
from service.statistics.boundedness import dispatch_share
from service.statistics.intervals import Interval
from service.step.profiling import attach_profiler, record_steps
from service.step.trace import Event, busy_microseconds, complete_events, match_work, step_marks

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


def sample_case(bench: AnyBench, case: AnyCase, seconds: float = SAMPLED_SECONDS) -> SampleCounts | None:
    """The samples of `case`, which runs for so long; None where there are none. Raises SamplerError."""
    found = sample_steps(bench.sampler, case.call, case.phase, TIMED_SECONDS, seconds)
    return found.counts if found else None


def sampled_split(counts: SampleCounts, wall: Interval) -> DispatchSplit | None:
    """A step of `wall` seconds, of which `counts` were sampled; None without a sample of kernel or host."""
    share = dispatch_share(counts)
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


STEPS = 7


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of one whole name: where it is cut, different ones may look like one. `seconds` are per
    step, `share` is of all kernels' time.
    """

    name: str
    per_step: float
    seconds: float
    share: float


class KernelTable(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of one step, the longest in sum first, from `steps` profiled ones with as many kernels.

    `left_out` steps had another number of kernels, or unknown ones: some were lost. `busy_seconds` is the
    median of `busy_steps_seconds`, a value per step, with kernels that overlap counted once.
    """

    rows: list[KernelRow]
    kernels: int
    busy_seconds: float
    busy_steps_seconds: list[float]
    steps: int
    left_out: int


def table_of(by_step: Sequence[Sequence[Event]]) -> KernelTable | None:
    """The table over profiled steps, each the list of its kernels; None where there are no kernels at all.

    Of the steps, those with the most frequent number of kernels count (the larger number on a tie).
    """
    counts = Counter(len(kernels) for kernels in by_step if kernels)
    if not counts:
        return None
    usual = max(counts, key=lambda count: (counts[count], count))
    chosen = [kernels for kernels in by_step if len(kernels) == usual]
    durations: dict[str, list[float]] = defaultdict(list)
    for kernel in (kernel for kernels in chosen for kernel in kernels):
        durations[kernel["name"]].append(kernel["dur"] / 1e6)
    total = sum(map(sum, durations.values()))
    rows = [_row(name, found, len(chosen), total) for name, found in durations.items()]
    busy = [busy_microseconds(kernels) / 1e6 for kernels in chosen]
    return KernelTable(
        rows=sorted(rows, key=lambda row: row.seconds, reverse=True),
        kernels=usual,
        busy_seconds=median(busy),
        busy_steps_seconds=busy,
        steps=len(chosen),
        left_out=len(by_step) - len(chosen),
    )


def kernel_table(bench: AnyBench, case: AnyCase, report: Log) -> KernelTable | None:
    """Profile a few steps of `case` on CUDA, one at a time; None where the profiler saw no kernels."""
    report("profiling kernels")
    attach_profiler(bench.device)
    events = complete_events(record_steps(bench.device, case.call, STEPS))
    return table_of([work.kernels for work in match_work(events, step_marks(events))])


def _row(name: str, found: list[float], steps: int, total: float) -> KernelRow:
    share = sum(found) / total if total else 0.0
    return KernelRow(name=name, per_step=len(found) / steps, seconds=sum(found) / steps, share=share)
