"""Steps of every mode at every batch: their seconds, and how much of them is dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from resource import RUSAGE_THREAD, getrusage
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

from models.served import NoTwin
from service.anatomy.errors import StudyError
from service.anatomy.operators.device_work import NO_DEVICE, device_work
from service.anatomy.progress import Report, counted
from service.anatomy.resolve import resolve_case
from service.measure.cases import Bench, Case
from service.measure.floors import DispatchSplit, floors, measured_split, prepare_floors, split_by_floor
from service.measure.rounds import in_rounds
from service.statistics.disturbance import is_disturbed
from service.statistics.intervals import Interval, median_interval
from service.step.untimed import LEAD_STEPS

Key = tuple[str, int]
"""Mode and batch bucket."""

TIMED_STEPS = 3
"""In a row, after LEAD_STEPS untimed ones."""


class Visit(NamedTuple):
    """One round's visit to a case: medians of its timed steps, and context switches of all its steps."""

    wall_seconds: float
    host_seconds: float
    involuntary_switches: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Rounds of seconds: `walls` until the device is done, `hosts` until the call returns.

    `switches_per_step` are involuntary context switches of this thread.
    """

    walls: Mapping[Key, list[float]]
    hosts: Mapping[Key, list[float]]
    switches_per_step: Mapping[Key, float]

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
    """Every case once per round, in a fresh order."""
    arms = {key: partial(_visit, bench, case) for key, case in cases.items()}
    visits = in_rounds(arms, rounds, "budget", counted(report, rounds))
    steps = rounds * (LEAD_STEPS + TIMED_STEPS)
    return Steps(
        walls={key: [visit.wall_seconds for visit in found] for key, found in visits.items()},
        hosts={key: [visit.host_seconds for visit in found] for key, found in visits.items()},
        switches_per_step={
            key: sum(visit.involuntary_switches for visit in found) / steps for key, found in visits.items()
        },
    )


def _visit(bench: Bench, case: Case) -> Visit:
    before = _switches()
    taken = [_step(bench, case) for _ in range(LEAD_STEPS + TIMED_STEPS)][LEAD_STEPS:]
    return Visit(
        wall_seconds=median(wall for wall, _ in taken),
        host_seconds=median(host for _, host in taken),
        involuntary_switches=_switches() - before,
    )


def disturbed_note(steps: Steps) -> list[str]:
    """One note that names every disturbed cell; empty where there is none."""
    cells = [f"{mode} at {batch}" for mode, batch in steps.walls if steps.disturbed((mode, batch))]
    if not cells:
        return []
    return [
        f"disturbed: other work took the core more than once in 20 steps of {', '.join(cells)}; that reads "
        "as kernel on a CPU; measure again on a quiet machine"
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


def split_steps(
    bench: Bench, cases: Mapping[Key, Case], steps: Steps, report: Report
) -> dict[Key, DispatchSplit]:
    """Dispatch and kernels of every case.

    On a CPU by the hollow twins at each batch; on CUDA by the host's clock and the profiler.
    Raises StudyError for a model that has no twin.
    """
    if bench.device.type == "cuda":
        return {key: _on_cuda(bench, case, steps.hosts[key]) for key, case in cases.items()}
    splits: dict[Key, DispatchSplit] = {}
    for mode in dict.fromkeys(mode for mode, _ in cases):
        batches = [batch for known, batch in cases if known == mode]
        for batch, floor in _floors(bench, mode, batches, report).items():
            splits[mode, batch] = split_by_floor(floor, median_interval(steps.walls[mode, batch]))
    return splits


def _floors(bench: Bench, mode: str, batches: list[int], report: Report) -> dict[int, Interval]:
    try:
        prepare_floors(bench, mode, batches, report)
    except NoTwin as missing:
        message = f"no dispatch floor on this CPU: {missing}. Serve on CUDA, or another model"
        raise StudyError("unsupported_here", message) from missing
    report(f"calibrating {mode}")
    return floors(bench, mode, batches)


def _on_cuda(bench: Bench, case: Case, hosts: list[float]) -> DispatchSplit:
    work = device_work(bench, case)
    if work is None or work.kernel_seconds is None:
        reason = work.step.unknown if work is not None else NO_DEVICE
        raise StudyError("unsupported_here", f"kernel time is unknown: {reason}")
    return measured_split(median_interval(hosts), work.kernel_seconds)
