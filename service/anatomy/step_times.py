"""Steps of several cases in interleaved rounds without a profiler: how long they take, and their samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from resource import RUSAGE_THREAD, getrusage
from statistics import median
from time import perf_counter_ns
from typing import TypeVar

from service.anatomy.common import Report, counted
from service.anatomy.operators.calls import DeviceWork
from service.measure.cases import AnyBench, AnyCase
from service.measure.cpu_sampler import SamplerError
from service.measure.rounds import in_rounds
from service.measure.step_costs import SAMPLED_SECONDS, DispatchSplit, sample_case, sampled_split
from service.records import SampleCounts
from service.statistics.choice import is_disturbed
from service.statistics.intervals import Interval
from service.step.buffers import LEAD_STEPS

Key = TypeVar("Key")


@dataclass(slots=True)
class StepTimes:
    """Of one case, the `seconds` of each step, and the medians of each round's. `walls` end when the device
    is done, as do `seconds`; `hosts` when the call returns. `switches` are involuntary context switches of
    this thread. `samples` are taken on a CPU only; None where they cannot be, for the reason `no_samples`.
    """

    seconds: list[float] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)
    hosts: list[float] = field(default_factory=list)
    switches: int = 0
    samples: SampleCounts = field(default_factory=SampleCounts)
    no_samples: str | None = None

    @property
    def disturbed(self) -> bool:
        """Whether there was more than one switch in 20 steps, the rule of every table; untimed ones count."""
        return is_disturbed(self.switches, len(self.seconds) + LEAD_STEPS * len(self.walls))


def time_steps(
    bench: AnyBench, cases: Mapping[Key, AnyCase], rounds: int, steps: int, study: str, report: Report
) -> dict[Key, StepTimes]:
    """Every case once per round, in a fresh order drawn from `study`: untimed steps, `steps` timed ones."""
    times = {key: StepTimes() for key in cases}
    variants = {
        key: partial(_time_round, bench, case, steps, SAMPLED_SECONDS / rounds, times[key])
        for key, case in cases.items()
    }
    in_rounds(variants, rounds, study, counted(report, rounds))
    return times


def _time_round(bench: AnyBench, case: AnyCase, steps: int, sampled_seconds: float, times: StepTimes) -> None:
    before = getrusage(RUSAGE_THREAD).ru_nivcsw
    taken = [_step(bench, case) for _ in range(LEAD_STEPS + steps)][LEAD_STEPS:]
    times.switches += getrusage(RUSAGE_THREAD).ru_nivcsw - before
    times.seconds += [wall for wall, _ in taken]
    times.walls.append(median(wall for wall, _ in taken))
    times.hosts.append(median(host for _, host in taken))
    if bench.device.type == "cpu":
        try:
            times.samples += sample_case(bench, case, sampled_seconds) or SampleCounts()
        except SamplerError as error:
            times.no_samples = str(error)


def _step(bench: AnyBench, case: AnyCase) -> tuple[float, float]:
    """Seconds until the device is done, and until the call returns."""
    bench.synchronise()
    began = perf_counter_ns()
    host = case.call_seconds()
    bench.synchronise()
    return (perf_counter_ns() - began) / 1e9, host


def split_step(step: Interval, samples: SampleCounts, work: DeviceWork | None) -> DispatchSplit | None:
    """Dispatch and kernels of a step: on a CPU by its samples, on CUDA by two clocks. None: unknown."""
    if work is None:
        return sampled_split(samples, step)
    return None if work.kernel_seconds is None else DispatchSplit(step, work.kernel_seconds, "measured")
