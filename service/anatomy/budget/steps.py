"""Steps of every mode at every batch: what one takes, and how much of it is dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from resource import RUSAGE_THREAD, getrusage
from statistics import median
from time import perf_counter_ns

from models.served import NoTwin
from service.anatomy.errors import StudyError
from service.anatomy.operators.device_work import device_work
from service.anatomy.progress import Report
from service.anatomy.resolve import resolve_case
from service.measure.cases import Bench, Case
from service.measure.floors import floor, prepare_floor
from service.statistics.intervals import Interval, median_interval

Key = tuple[str, int]
"""Mode and batch bucket."""

LEAD_STEPS, TIMED_STEPS = 2, 3
"""Steps in a row: untimed first, because the first after another mode's is slower."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Dispatch and kernels of a step, in seconds. `source` is as in a request's timings.

    `calibrated`: dispatch is a lower estimate, and kernels, which are the rest, an upper one.
    """

    dispatch: Interval
    kernel: Interval
    source: str


@dataclass(frozen=True, slots=True)
class Steps:
    """Rounds of seconds: `walls` until the device is done, `hosts` until the call returns.

    `switches_per_step` says how often something else took this thread's core.
    """

    walls: Mapping[Key, list[float]]
    hosts: Mapping[Key, list[float]]
    switches_per_step: Mapping[Key, float]

    def disturbed(self, key: Key) -> bool:
        """Whether that was more than once in 20 steps, as in every table of the house."""
        return self.switches_per_step[key] > 1 / 20


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
    """Every case once per round, in a fresh order; a round's value is the median of a few steps in a row."""
    walls: dict[Key, list[float]] = {key: [] for key in cases}
    hosts: dict[Key, list[float]] = {key: [] for key in cases}
    switches = dict.fromkeys(cases, 0)
    for number in range(rounds):
        report(f"round {number + 1} of {rounds}")
        keys = list(cases)
        Random(number).shuffle(keys)
        for key in keys:
            before = _switches()
            taken = [_step(bench, cases[key]) for _ in range(LEAD_STEPS + TIMED_STEPS)][LEAD_STEPS:]
            switches[key] += _switches() - before
            walls[key].append(median(wall for wall, _ in taken))
            hosts[key].append(median(host for _, host in taken))
    made = rounds * (LEAD_STEPS + TIMED_STEPS)
    return Steps(walls, hosts, {key: count / made for key, count in switches.items()})


def disturbed_note(steps: Steps) -> list[str]:
    """One note that names every disturbed cell; none where there is none."""
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
    bench.synchronise()
    began = perf_counter_ns()
    host = case.call_seconds()
    bench.synchronise()
    return (perf_counter_ns() - began) / 1e9, host


def take_apart(bench: Bench, cases: Mapping[Key, Case], steps: Steps, report: Report) -> dict[Key, Parts]:
    """Dispatch and kernel of every case.

    On a CPU by the hollow twins at the smallest and the largest batch, interpolated between; on CUDA by the
    host's clock and the profiler. Raises StudyError for a model that has no twin.
    """
    if bench.device.type == "cuda":
        return {key: _on_cuda(bench, case, steps.hosts[key]) for key, case in cases.items()}
    parts: dict[Key, Parts] = {}
    for mode in dict.fromkeys(mode for mode, _ in cases):
        batches = [batch for known, batch in cases if known == mode]
        ends = {batch: _floor(bench, mode, batch, report) for batch in (min(batches), max(batches))}
        for batch in batches:
            parts[mode, batch] = split(median_interval(steps.walls[mode, batch]), between(ends, batch))
    return parts


def between(ends: Mapping[int, Interval], batch: int) -> Interval:
    """The floor at `batch`, linear in the batch between the two measured ends."""
    smallest, largest = ends[min(ends)], ends[max(ends)]
    share = (batch - min(ends)) / (max(ends) - min(ends)) if len(ends) > 1 else 0.0

    def at(low: float, high: float) -> float:
        return low + share * (high - low)

    return Interval(
        at(smallest.value, largest.value),
        at(smallest.low, largest.low),
        at(smallest.high, largest.high),
        min(smallest.samples, largest.samples),
    )


def split(wall: Interval, twin: Interval) -> Parts:
    """A step on a CPU into its floor and the rest; a floor above the step is the step."""

    def least(value: float) -> float:
        return min(value, wall.value)

    dispatch = Interval(least(twin.value), least(twin.low), least(twin.high), twin.samples)
    kernel = Interval(
        wall.value - dispatch.value,
        max(0.0, wall.low - twin.high),
        max(0.0, wall.high - twin.low),
        wall.samples,
    )
    return Parts(dispatch, kernel, "calibrated")


def _floor(bench: Bench, mode: str, batch: int, report: Report) -> Interval:
    try:
        prepare_floor(bench, mode, batch, report)
    except NoTwin as missing:
        message = (
            f"dispatch cannot be told from kernels on this CPU: {missing}. Serve on CUDA, or another model"
        )
        raise StudyError("unsupported_here", message) from missing
    report(f"calibrating {mode}")
    found = floor(bench, mode, batch)
    if found is None:
        raise StudyError("unsupported_here", f"{mode} has no floor at batch {batch}", "modes")
    return Interval(found.seconds, found.low, found.high, found.samples)


def _on_cuda(bench: Bench, case: Case, hosts: list[float]) -> Parts:
    work = device_work(bench, case)
    seconds = work.kernel_seconds if work is not None else None
    if seconds is None:
        raise StudyError("unsupported_here", "the profiler saw no kernels: is CUPTI allowed here?")
    return Parts(median_interval(hosts), Interval(seconds, seconds, seconds, 1), "measured")
