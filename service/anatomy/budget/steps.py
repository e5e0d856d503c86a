"""Steps of every mode at every batch: their seconds, and how much of them is dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from resource import RUSAGE_THREAD, getrusage
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

from service.anatomy.errors import StudyError
from service.anatomy.operators.device_work import NO_DEVICE, device_work
from service.anatomy.progress import Report, counted
from service.anatomy.resolve import resolve_case
from service.measure.cases import Bench, Case
from service.measure.cpu_sampler import SamplerError
from service.measure.rounds import in_rounds
from service.measure.split import (
    SAMPLED_SECONDS,
    DispatchSplit,
    measured_split,
    sample_case,
    sampled_split,
)
from service.protocol.splits import SampleCounts
from service.statistics.disturbance import is_disturbed
from service.statistics.intervals import median_interval
from service.step.untimed import LEAD_STEPS

Key = tuple[str, int]
"""Mode and batch bucket."""

TIMED_STEPS = 3
"""In a row, after LEAD_STEPS untimed ones."""


class Visit(NamedTuple):
    """One round's visit to a case: medians of its timed steps, and context switches of all up to these.

    `samples` are of steps after them, on a CPU.
    """

    wall_seconds: float
    host_seconds: float
    involuntary_switches: int
    samples: SampleCounts


@dataclass(frozen=True, slots=True)
class Steps:
    """Rounds of seconds: `walls` until the device is done, `hosts` until the call returns.

    `switches_per_step` are involuntary context switches of this thread. `samples`: of all rounds, on a CPU.
    """

    walls: Mapping[Key, list[float]]
    hosts: Mapping[Key, list[float]]
    switches_per_step: Mapping[Key, float]
    samples: Mapping[Key, SampleCounts]

    def disturbed(self, key: Key) -> bool:
        """Whether there was more than one switch in 20 steps, the rule of every table."""
        return is_disturbed(self.switches_per_step[key], 1)


def ready_cases(
    bench: Bench, modes: list[str], batches: list[int], report: Report
) -> tuple[dict[Key, Case], list[str]]:
    """Warmed decode steps, and a note for each mode that does not run here."""
    cases: dict[Key, Case] = {}
    notes = []
    for mode in modes:
        try:
            cases |= {(mode, batch): resolve_case(bench, mode, batch, "decode", report) for batch in batches}
        except StudyError as error:
            notes.append(error.message)
    return cases, notes


def time_steps(bench: Bench, cases: Mapping[Key, Case], rounds: int, report: Report) -> Steps:
    """Every case once per round, in a fresh order. Raises StudyError for a CPU that cannot be sampled."""
    arms = {key: partial(_visit, bench, case, SAMPLED_SECONDS / rounds) for key, case in cases.items()}
    visits = in_rounds(arms, rounds, "budget", counted(report, rounds))
    steps = rounds * (LEAD_STEPS + TIMED_STEPS)
    return Steps(
        walls={key: [visit.wall_seconds for visit in found] for key, found in visits.items()},
        hosts={key: [visit.host_seconds for visit in found] for key, found in visits.items()},
        switches_per_step={
            key: sum(visit.involuntary_switches for visit in found) / steps for key, found in visits.items()
        },
        samples={
            key: sum((visit.samples for visit in found), SampleCounts()) for key, found in visits.items()
        },
    )


def _visit(bench: Bench, case: Case, sampled_seconds: float) -> Visit:
    before = _switches()
    taken = [_step(bench, case) for _ in range(LEAD_STEPS + TIMED_STEPS)][LEAD_STEPS:]
    return Visit(
        wall_seconds=median(wall for wall, _ in taken),
        host_seconds=median(host for _, host in taken),
        involuntary_switches=_switches() - before,
        samples=_samples(bench, case, sampled_seconds),
    )


def _samples(bench: Bench, case: Case, seconds: float) -> SampleCounts:
    if bench.device.type == "cuda":
        return SampleCounts()
    try:
        return sample_case(bench, case, seconds) or SampleCounts()
    except SamplerError as error:
        raise StudyError("unsupported_here", f"dispatch is unknown on this CPU: {error}") from None


def disturbed_note(steps: Steps) -> list[str]:
    """One note that names every disturbed cell; empty where there is none."""
    cells = [f"{mode} at {batch}" for mode, batch in steps.walls if steps.disturbed((mode, batch))]
    if not cells:
        return []
    return [
        f"disturbed: other work took the core more than once in 20 steps of {', '.join(cells)}; "
        "measure again on a quiet machine"
    ]


def _switches() -> int:
    return getrusage(RUSAGE_THREAD).ru_nivcsw


def _step(bench: Bench, case: Case) -> tuple[float, float]:
    """Seconds until the device is done, and until the call returns."""
    bench.synchronise()
    began = perf_counter_ns()
    host = case.call_seconds()
    bench.synchronise()
    return (perf_counter_ns() - began) / 1e9, host


def split_steps(bench: Bench, cases: Mapping[Key, Case], steps: Steps) -> dict[Key, DispatchSplit]:
    """Dispatch and kernels of every case: on a CPU by its samples, on CUDA by two clocks.

    Raises StudyError where they are unknown.
    """
    if bench.device.type == "cuda":
        return {key: _on_cuda(bench, case, steps.hosts[key]) for key, case in cases.items()}
    return {key: _on_cpu(key, steps) for key in cases}


def _on_cpu(key: Key, steps: Steps) -> DispatchSplit:
    split = sampled_split(steps.samples[key], median_interval(steps.walls[key]))
    if split is None:
        raise StudyError("unsupported_here", f"no sample fell into a step of {key[0]} at {key[1]}: try again")
    return split


def _on_cuda(bench: Bench, case: Case, hosts: list[float]) -> DispatchSplit:
    work = device_work(bench, case)
    if work is None or work.kernel_seconds is None:
        reason = work.step.unknown if work is not None else NO_DEVICE
        raise StudyError("unsupported_here", f"kernel time is unknown: {reason}")
    return measured_split(median_interval(hosts), work.kernel_seconds)
