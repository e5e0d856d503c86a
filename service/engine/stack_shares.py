"""The second witness of dispatch: which share of real steps the engine's thread spends in kernels."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from statistics import median
from time import perf_counter_ns

from service.engine.configured_mode import ConfiguredMode
from service.protocol.messages import Phase
from service.protocol.status import StackShare
from service.statistics.intervals import mean_interval
from service.step.buffers import Arguments, Buffers
from service.step.callables import Step
from service.step.native.perf_events import PerfError
from service.step.native.stacks import StackSampler
from service.step.untimed import DECODE_POSITION, LEAD_STEPS, LEAD_STEPS_OF_PREFILL, PREFILL_TOKENS

ROUNDS = 8
SAMPLED_SECONDS = 0.02
TIMED_SECONDS = 0.005
"""Of steps per mode, phase, bucket and round, at least one: sampled, and timed without being sampled."""

Key = tuple[str, Phase, int]


class StackShares:
    """Samples real steps of the ready modes on the thread that made it. `missing`: why it cannot."""

    def __init__(self, buffers: Mapping[int, Buffers], on_cpu: bool) -> None:
        self._buffers = buffers
        self._shares: dict[Key, StackShare] = {}
        self._sampler: StackSampler | None = None
        self.missing: str | None = None
        try:
            if on_cpu:
                self._sampler = StackSampler()
        except PerfError as error:
            self.missing = str(error)

    def share(self, mode: str, phase: Phase, bucket: int) -> StackShare | None:
        """The newest share; None where none was taken."""
        return self._shares.get((mode, phase, bucket))

    def resample(self, modes: Mapping[str, ConfiguredMode]) -> None:
        """Take the shares of all steps of `modes` anew, interleaved in rounds."""
        if self._sampler is None:
            return
        arms: dict[Key, Step] = {
            (name, phase, bucket): step
            for name, configured in modes.items()
            for (phase, bucket), step in configured.steps.items()
        }
        found: dict[Key, list[tuple[float, int, float]]] = {key: [] for key in arms}
        for number in range(ROUNDS):
            keys = list(arms)
            Random(number).shuffle(keys)
            for key in keys:
                visit = self._visit(self._sampler, arms[key], key[1], key[2])
                if visit is not None:
                    found[key].append(visit)
        self._shares = {key: _share(visits) for key, visits in found.items() if len(visits) > 1}

    def _visit(
        self, sampler: StackSampler, step: Step, phase: Phase, bucket: int
    ) -> tuple[float, int, float] | None:
        """(kernel share, samples, median step seconds) of steps in a row; None without a sample.

        Steps are timed before, because each sample is an interrupt.
        """
        arguments = self._prepared(phase, bucket)
        for _ in range(LEAD_STEPS if phase == "decode" else LEAD_STEPS_OF_PREFILL):
            step(*arguments)
        timed = _run(step, arguments, TIMED_SECONDS)
        try:
            with sampler.recording() as recorded:
                _run(step, arguments, SAMPLED_SECONDS)
        except PerfError:
            return None  # of a step of seconds more samples come than are kept: its share stays unknown
        share = recorded.kernel_share
        return None if share is None else (share, len(recorded.samples), median(timed))

    def _prepared(self, phase: Phase, bucket: int) -> Arguments:
        buffers = self._buffers[bucket]
        if phase == "decode":
            buffers.positions.fill_(min(DECODE_POSITION, max(buffers.caches) - 1))
            return buffers.arguments("decode")
        buffers.positions.zero_()
        length = buffers.padded(min(PREFILL_TOKENS, buffers.chunk_length))
        return buffers.arguments("prefill", length)


def _run(step: Step, arguments: Arguments, seconds: float) -> list[float]:
    """Steps in a row for `seconds`, at least one; the seconds of each."""
    found = []
    began = now = perf_counter_ns()
    while now - began < seconds * 1e9:
        step(*arguments)
        ended = perf_counter_ns()
        found.append((ended - now) / 1e9)
        now = ended
    return found


def _share(visits: list[tuple[float, int, float]]) -> StackShare:
    interval = mean_interval([share for share, _, _ in visits])
    return StackShare(
        kernel_share=interval.value,
        low=max(0.0, interval.low),
        high=min(1.0, interval.high),
        samples=sum(samples for _, samples, _ in visits),
        step_seconds=median(seconds for _, _, seconds in visits),
    )
