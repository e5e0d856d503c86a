"""The tax on a step, TaxBreak's term (arXiv:2603.12465): the share of its time that was no kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Literal

import msgspec

from service.anatomy.progress import Report, counted
from service.measure.cases import Bench, Case
from service.measure.cpu_sampler import SamplerError
from service.measure.rounds import in_rounds
from service.measure.split import SAMPLED_SECONDS, sample_case
from service.protocol.splits import SampleCounts
from service.statistics.intervals import Interval
from service.statistics.sampled_share import dispatch_share
from service.step.untimed import LEAD_STEPS

PARTS = 3
ROUNDS = 4

TIMED_STEPS = 5

HOW_ON_CPU = (
    "the share of samples of the step's thread that were in the host's code and in no kernel, without a "
    "profiler. The profiler's own nesting is not used: it adds to every operator that it records"
)
HOW_ON_CUDA = (
    "1 − the time in which a kernel ran, by the device's clock, over the step's wall time without a profiler"
)


class Tax(msgspec.Struct, frozen=True, kw_only=True):
    """Share of a step's wall time in which no kernel ran.

    `sampled`: by samples of the thread, on a CPU. `measured`: from the time in which any kernel ran. `how`
    explains that in a sentence.
    """

    fraction: Interval
    source: Literal["sampled", "measured"]
    how: str


@dataclass(slots=True)
class Timed:
    """A case, the wall seconds of its steps, and on a CPU its samples, or why there are none.

    `rounds` are the medians of each round's steps, which pair with another case's.
    """

    case: Case
    seconds: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    samples: SampleCounts = field(default_factory=SampleCounts)
    no_samples: str | None = None


def time_steps(bench: Bench, cases: list[Case], report: Report) -> list[Timed]:
    """Time whole steps without a profiler, in interleaved rounds.

    Samples are taken between parts of them, so that both see a machine that is slow for a while.
    """
    timed = {case.mode: Timed(case) for case in cases}
    arms = {case.mode: partial(_steps, bench, case) for case in cases}
    log = counted(report, PARTS * ROUNDS)
    for part in range(PARTS):
        blocks = in_rounds(arms, ROUNDS, f"timeline/{part}", log)
        for mode, one in timed.items():
            one.seconds.extend(seconds for block in blocks[mode] for seconds in block)
            one.rounds.extend(map(median, blocks[mode]))
            if bench.device.type == "cpu":
                _sample(bench, one)
    return list(timed.values())


def _sample(bench: Bench, timed: Timed) -> None:
    try:
        found = sample_case(bench, timed.case, SAMPLED_SECONDS / PARTS)
    except SamplerError as error:
        timed.no_samples = str(error)
        return
    if found is None:
        timed.no_samples = "no sample was in a kernel or in the host's code"
    else:
        timed.samples += found


def _steps(bench: Bench, case: Case) -> list[float]:
    for _ in range(LEAD_STEPS):
        case.call()
    return [_whole_seconds(bench, case) for _ in range(TIMED_STEPS)]


def _whole_seconds(bench: Bench, case: Case) -> float:
    """One step by the host's clock, until the device has finished."""
    if bench.device.type != "cuda":
        return case.call_seconds()
    bench.synchronise()
    began = perf_counter_ns()
    case.call()
    bench.synchronise()
    return (perf_counter_ns() - began) / 1e9


def tax_by_samples(counts: SampleCounts) -> Tax | None:
    """On a CPU, where host and kernels share one timeline; None without a sample of either."""
    share = dispatch_share(counts.kernel, counts.host, counts.unclassified)
    if share is None:
        return None
    return Tax(fraction=Interval(*share, counts.kernel + counts.host), source="sampled", how=HOW_ON_CPU)


def tax_by_kernels(kernel_seconds: float, wall: Interval) -> Tax:
    """On CUDA, where the device has its own clock. The bounds are those of the wall time, within 0 and 1."""

    def idle(whole: float) -> float:
        return 1.0 - min(max(kernel_seconds / whole, 0.0), 1.0) if whole > 0 else 0.0

    fraction = Interval(idle(wall.value), idle(wall.low), idle(wall.high), wall.samples)
    return Tax(fraction=fraction, source="measured", how=HOW_ON_CUDA)
