"""The tax on a step: the share of its time that was no kernel, and how that is known on this device."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Literal

import msgspec
import torch

from service.measure.cases import Bench, Case
from service.measure.estimate import Estimate
from service.measure.floors import floor
from service.protocol.messages import Phase
from service.protocol.status import Floor

PARTS, ROUNDS = 3, 4
LEAD_STEPS = 3
"""Untimed steps before timed ones: a mode's first step after another mode's is slower."""

TIMED_STEPS = 5

HOW_ON_CPU = (
    "dispatch floor of the hollow twin over the step's wall time, both without a profiler; a lower estimate. "
    "The profiler's own nesting is not used: it adds to every operator that it records"
)
OF_DECODE = "This step is a prefill, and the floor is nevertheless that of a decode step"
HOW_ON_CUDA = "1 − kernel durations, by the device's clock, over the step's wall time without a profiler"


class Tax(msgspec.Struct, frozen=True, kw_only=True):
    """Share of a step's wall time in which no kernel ran, with its 95 % bounds where there are any.

    `floor`: a lower estimate, from a decode step's dispatch floor. `kernels`: from their summed durations.
    """

    fraction: float
    low: float | None
    high: float | None
    source: Literal["floor", "kernels"]
    how: str


@dataclass(slots=True)
class Timed:
    """A case, the wall times of its steps so far, and on a CPU its floor; None without a hollow twin."""

    case: Case
    seconds: list[float] = field(default_factory=list)
    floor: Floor | None = None


def time_steps(bench: Bench, cases: list[Case]) -> list[Timed]:
    """Time whole steps, no profiler on, in interleaved rounds.

    Floors are sampled between parts of them, so that a machine that is slow for a while is so for both.
    """
    timed = [Timed(case) for case in cases]
    for number in range(PARTS * ROUNDS):
        for one in timed:
            for _ in range(LEAD_STEPS):
                one.case.call()
            one.seconds.extend(whole_seconds(bench, one.case) for _ in range(TIMED_STEPS))
            if bench.device.type == "cpu" and number % ROUNDS == ROUNDS - 1:
                one.floor = floor(bench, one.case.mode, one.case.buffers.bucket)
    return timed


def whole_seconds(bench: Bench, case: Case) -> float:
    """One step by the host's clock; on CUDA until the device has finished."""
    if bench.device.type != "cuda":
        return case.call_seconds()
    torch.cuda.synchronize()
    began = perf_counter_ns()
    case.call()
    torch.cuda.synchronize()
    return (perf_counter_ns() - began) / 1e9


def tax_by_floor(found: Floor, wall: Estimate, phase: Phase) -> Tax:
    """On a CPU, where host and kernel share one timeline. The bounds put the worse ends of both together.

    `phase` is that of the step; the floor is always a decode step's, which `how` says where they differ.
    """
    how = HOW_ON_CPU if phase == "decode" else f"{HOW_ON_CPU}. {OF_DECODE}"
    return Tax(
        fraction=_share(found.seconds, wall.median_seconds),
        low=wall.high and _share(found.low, wall.high),
        high=wall.low and _share(found.high, wall.low),
        source="floor",
        how=how,
    )


def tax_by_kernels(kernel_seconds: float, wall: Estimate) -> Tax:
    """On CUDA, where the device has a clock of its own. The bounds are those of the wall time."""

    def idle(whole: float) -> float:
        return _share(whole - kernel_seconds, whole)

    return Tax(
        fraction=idle(wall.median_seconds),
        low=wall.low and idle(wall.low),
        high=wall.high and idle(wall.high),
        source="kernels",
        how=HOW_ON_CUDA,
    )


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0)
