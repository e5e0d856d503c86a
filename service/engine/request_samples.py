"""Samples the engine's thread while a request runs that asks for it: how much of its steps is in kernels."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from service.engine.job_result import JobResult
from service.protocol.messages import Job
from service.step.buffers import Arguments
from service.step.callables import Step
from service.step.meters import Meter, Readings
from service.step.native.perf_events import PerfError, Samples
from service.step.native.stacks import StackSampler
from service.step.native.step_samples import AddressSides, within

DRAIN_NS = 1_000_000_000
"""The ring is emptied so often while a request runs: it holds four times as many samples."""


class RequestSamples:
    """By `sampler`; without one none is sampled, and the engine's status says why."""

    def __init__(self, sampler: StackSampler | None) -> None:
        self._sampler = sampler.addresses if sampler is not None else None
        self._sides: AddressSides | None = None

    def is_due(self, job: Job) -> bool:
        """Whether `job` is to be sampled, which makes it slower: each sample is an interrupt."""
        return job.sample and self._sampler is not None

    def run(self, result: JobResult, meter: Meter, generate: Callable[[Meter], None]) -> None:
        """Call `generate` with a meter, sampled: `result`'s readings then have their samples.

        They have none where some were lost, within a step that takes longer than the ring holds.
        """
        assert self._sampler is not None
        result.sampled = True
        draining = _DrainingMeter(meter, self._sampler.drain)
        self._sampler.start()
        try:
            generate(draining)
        finally:
            found = Samples()
            try:
                self._sampler.stop(found)
            except PerfError:
                draining.lost = True
            if not draining.lost:
                self._count(found, result)

    def _count(self, found: Samples, result: JobResult) -> None:
        if self._sides is None:
            self._sides = AddressSides()
        sides = self._sides.of(found.addresses.tolist())
        for readings in (result.prefill, result.decode):
            readings.samples = within(readings.begin, readings.call, found, sides)


class _DrainingMeter:
    """Another meter, which between two steps also sees to it that samples have room."""

    def __init__(self, inner: Meter, drain: Callable[[], None]) -> None:
        self._inner = inner
        self._drain = drain
        self._due_ns: int | None = None
        self.lost = False
        self.fetch = inner.fetch

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[Tensor, Tensor]:
        """Call `step` once."""
        result = self._inner.run(step, arguments, readings)
        began_ns = readings.begin[-1]
        if self._due_ns is None:
            self._due_ns = began_ns + DRAIN_NS
        elif began_ns > self._due_ns:
            self._due_ns = began_ns + DRAIN_NS
            self._make_room()
        return result

    def _make_room(self) -> None:
        try:
            self._drain()
        except PerfError:
            self.lost = True
