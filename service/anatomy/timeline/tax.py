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
from service.measure.floors import floors
from service.measure.rounds import in_rounds
from service.protocol.messages import Phase
from service.statistics.intervals import Interval
from service.step.untimed import LEAD_STEPS

PARTS = 3
ROUNDS = 4

TIMED_STEPS = 5

HOW_ON_CPU = (
    "dispatch floor of the hollow twin over the step's wall time, both without a profiler; a lower estimate. "
    "The profiler's own nesting is not used: it adds to every operator that it records"
)
OF_DECODE = "This step is a prefill, and the floor is nevertheless that of a decode step"
HOW_ON_CUDA = (
    "1 − the time in which a kernel ran, by the device's clock, over the step's wall time without a profiler"
)


class Tax(msgspec.Struct, frozen=True, kw_only=True):
    """Share of a step's wall time in which no kernel ran.

    `floor`: a lower estimate, from a decode step's dispatch floor. `kernels`: from the time in which any ran.
    `how` explains that in a sentence.
    """

    fraction: Interval
    source: Literal["floor", "kernels"]
    how: str


@dataclass(slots=True)
class Timed:
    """A case, the wall seconds of its steps, and on a CPU its floor; None without a hollow twin.

    `rounds` are the medians of each round's steps, which pair with another case's.
    """

    case: Case
    seconds: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    floor: Interval | None = None


def time_steps(bench: Bench, cases: list[Case], report: Report) -> list[Timed]:
    """Time whole steps without a profiler, in interleaved rounds.

    Floors are sampled between parts of them, so that both see a machine that is slow for a while.
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
                bucket = one.case.buffers.bucket
                one.floor = floors(bench, mode, [bucket]).get(bucket)
    return list(timed.values())


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


def tax_by_floor(floor: Interval, wall: Interval, phase: Phase) -> Tax:
    """On a CPU, where host and kernels share one timeline. Each bound combines the worse ends of both.

    `phase` is that of the step; the floor is always a decode step's, which `how` adds for a prefill.
    """
    fraction = Interval(
        _share(floor.value, wall.value),
        _share(floor.low, wall.high),
        _share(floor.high, wall.low) if wall.low > 0 else 1.0,
        min(floor.samples, wall.samples),
    )
    how = HOW_ON_CPU if phase == "decode" else f"{HOW_ON_CPU}. {OF_DECODE}"
    return Tax(fraction=fraction, source="floor", how=how)


def tax_by_kernels(kernel_seconds: float, wall: Interval) -> Tax:
    """On CUDA, where the device has its own clock. The bounds are those of the wall time, within 0 and 1."""

    def idle(whole: float) -> float:
        return 1.0 - _share(kernel_seconds, whole) if whole > 0 else 0.0

    fraction = Interval(idle(wall.value), idle(wall.low), idle(wall.high), wall.samples)
    return Tax(fraction=fraction, source="kernels", how=HOW_ON_CUDA)


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0)
