"""The witness that gives dispatch on a CPU: which share of real steps the engine's thread is in kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from random import Random
from statistics import median

from service.engine.configured_mode import ConfiguredMode
from service.protocol.floors import StackShare
from service.protocol.messages import Phase
from service.statistics.intervals import mean_interval
from service.step.buffers import Buffers
from service.step.callables import Step
from service.step.measured_inputs import measured_arguments, set_positions
from service.step.native.perf_events import PerfError
from service.step.native.stacks import SampledSteps, StackSampler, sample_steps

ROUNDS = 8
SAMPLED_SECONDS = 0.02
TIMED_SECONDS = 0.005
"""Of steps per mode, phase, bucket and round, at least: sampled, and timed without being sampled."""

Key = tuple[str, Phase, int]


class StackShares:
    """Samples real steps of the ready modes on the thread that made it.

    `missing` is why it cannot, on a CPU; on CUDA nothing is sampled, because dispatch is measured.
    """

    def __init__(self, buffers: Mapping[int, Buffers], on_cpu: bool) -> None:
        self._buffers = buffers
        self._shares: dict[Key, StackShare] = {}
        self.sampler: StackSampler | None = None
        self.missing: str | None = None
        try:
            if on_cpu:
                self.sampler = StackSampler()
        except PerfError as error:
            self.missing = str(error)

    def share(self, mode: str, phase: Phase, bucket: int) -> StackShare | None:
        """The newest share; None where none was taken."""
        return self._shares.get((mode, phase, bucket))

    def resample(self, modes: Mapping[str, ConfiguredMode]) -> Iterator[None]:
        """Take the shares of all steps of `modes` anew, interleaved in rounds; they change at the end.

        Yields after each visit of a step: what runs then disturbs none, because a visit begins by settling.
        """
        if self.sampler is None:
            return
        arms: dict[Key, Step] = {
            (name, phase, bucket): step
            for name, configured in modes.items()
            for (phase, bucket), step in configured.steps.items()
        }
        found: dict[Key, list[SampledSteps]] = {key: [] for key in arms}
        for number in range(ROUNDS):
            keys = list(arms)
            Random(number).shuffle(keys)
            for key in keys:
                visit = self._visit(self.sampler, arms[key], key[1], key[2])
                if visit is not None:
                    found[key].append(visit)
                yield
        self._shares = {key: _share(visits) for key, visits in found.items() if len(visits) > 1}

    def _visit(self, sampler: StackSampler, step: Step, phase: Phase, bucket: int) -> SampledSteps | None:
        buffers = self._buffers[bucket]
        set_positions(buffers, phase)
        run = partial(step, *measured_arguments(buffers, phase))
        return sample_steps(sampler, run, phase, TIMED_SECONDS, SAMPLED_SECONDS)


def _share(visits: list[SampledSteps]) -> StackShare:
    """Unnamed samples are host in the values, and either in the intervals."""
    interval = mean_interval([visit.kernel_share for visit in visits])
    dispatch = mean_interval([visit.dispatch_seconds for visit in visits])
    most_kernel = mean_interval([visit.most_kernel_share for visit in visits])
    least_dispatch = mean_interval([(1 - visit.most_kernel_share) * visit.step_seconds for visit in visits])
    return StackShare(
        kernel_share=interval.value,
        low=max(0.0, interval.low),
        high=min(1.0, most_kernel.high),
        samples=sum(visit.samples for visit in visits),
        step_seconds=median(visit.step_seconds for visit in visits),
        dispatch_seconds=dispatch.value,
        dispatch_low_seconds=max(0.0, least_dispatch.low),
        dispatch_high_seconds=dispatch.high,
    )
