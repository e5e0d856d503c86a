"""The hollow twin: the same step with kernels that do next to nothing, so that its wall time is dispatch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from time import perf_counter_ns

import torch
from torch import nn

from models.served import Served
from service.protocol.floors import Floor
from service.protocol.messages import Phase
from service.protocol.modes import Mode
from service.step.buffers import Arguments, Buffers, allocate
from service.step.callables import Step
from service.step.cold_cache import ColdCacheEmulation, issued_by_operator
from service.step.twin_step import TwinStep
from service.step.untimed import LEAD_STEPS_OF_FLOOR

FIRST_SAMPLES = 21
"""Samples per (mode, phase, bucket) before a mode is ready."""

TWIN_TOKENS = 2
"""Tokens of a twin's prefill step: the fewest with which it is no decode step."""


class Calibration:
    """Dispatch floors per mode, phase and batch.

    On a CPU a twin reads too low unless the caches are kept as cold as the served model's weights keep them
    for a real step: see `ColdCacheEmulation`. On CUDA no weights pass through the host's caches.
    `twin` None: there is none, no twin step is ever added, and every floor stays None.
    """

    def __init__(self, model: nn.Module, twin: Served | None) -> None:
        self._device_type = next(model.parameters()).device.type
        self._cold_cache = ColdCacheEmulation(model) if self._device_type == "cpu" else None
        self._in_one_call = twin
        self._by_operator = twin
        if self._cold_cache and twin:
            self._by_operator = copy.deepcopy(twin)
            self._cold_cache.patch_modules(self._by_operator)
        self._twins: dict[tuple[str, Phase, int], TwinStep] = {}
        self._refreshes = 0

    def twin_of(self, mode: Mode) -> Served:
        """The hollow model that `mode`'s twin steps are to be built on."""
        twin = self._by_operator if issued_by_operator(mode, self._device_type) else self._in_one_call
        if twin is None:
            raise ValueError("this model has no hollow twin")
        return twin

    def needs_twin(self, mode: Mode) -> bool:
        """Whether the floor of `mode` is read: on CUDA, where dispatch is measured, no compiled one is.

        Its twin would take as long to compile as the step. Those of other modes cost nothing and cross-check.
        """
        return self._device_type == "cpu" or not mode.effect(self._device_type).compiles

    def add(self, mode: Mode, phase: Phase, bucket: int, step: Step, arguments: Arguments) -> None:
        """Take a warmed twin step of `mode` into the round."""
        evict_before = not issued_by_operator(mode, self._device_type)
        self._twins[mode.name, phase, bucket] = TwinStep(
            mode.name, phase, bucket, step, arguments, evict_before
        )

    def remove(self, mode: str) -> None:
        """Take a mode that failed out of the round."""
        self._twins = {key: twin for key, twin in self._twins.items() if twin.mode != mode}

    def twins(self, mode: str) -> list[TwinStep]:
        """The twin steps of `mode`."""
        return [twin for twin in self._twins.values() if twin.mode == mode]

    def first_samples(self, mode: str) -> None:
        """Sample each of `mode`'s twins until it has enough for an interval."""
        for twin in self.twins(mode):
            self._sample(twin, FIRST_SAMPLES)

    def resample(self) -> None:
        """Sample all twins again, taking turns, so that a short disturbance is spread over all of them.

        Twins whose interval is still wide get further samples, up to as many again.
        """
        for twin in self._twins.values():
            twin.samples_seconds.clear()
        for number in range(2 * FIRST_SAMPLES):
            for twin in self._twins.values():
                if number < FIRST_SAMPLES or twin.is_wide():
                    self._sample(twin)

    def discard_samples(self, mode: str) -> None:
        """Discard the samples of `mode`'s twins, so that its next floor is of the machine as it is now."""
        for twin in self.twins(mode):
            twin.samples_seconds.clear()

    def refresh(self, interrupted: Callable[[], bool] = lambda: False) -> float:
        """Sample the next twin in the round; returns the seconds it took, 0 where there is none.

        `interrupted` is called between passes: once it is true, the sample is given up.
        """
        if not self._twins:
            return 0.0
        began = perf_counter_ns()
        twin = list(self._twins.values())[self._refreshes % len(self._twins)]
        self._sample(twin, interrupted=interrupted)
        self._refreshes += 1
        return (perf_counter_ns() - began) / 1e9

    @property
    def round_complete(self) -> bool:
        """Whether the newest refresh was the last one of a round over all twins."""
        return bool(self._twins) and self._refreshes % len(self._twins) == 0

    def floor(self, mode: str, phase: Phase, bucket: int) -> Floor | None:
        """Dispatch of one step of `mode` at `bucket`; None before it is calibrated.

        Where this phase has no twin at `bucket`, that of its smallest bucket: a twin's dispatch does not
        depend on the batch, and the smallest has the least work of its own.
        """
        twin = self._twin(mode, phase, bucket)
        return twin.floor(bucket) if twin else None

    def _twin(self, mode: str, phase: Phase, bucket: int) -> TwinStep | None:
        twins = [twin for twin in self.twins(mode) if twin.phase == phase and twin.samples_seconds]
        smallest = min(twins, key=lambda twin: twin.bucket, default=None)
        return next((twin for twin in twins if twin.bucket == bucket), smallest)

    def samples(self, mode: str, phase: Phase, bucket: int) -> list[float]:
        """The samples of `floor` of the same arguments, in seconds."""
        twin = self._twin(mode, phase, bucket)
        return list(twin.samples_seconds) if twin else []

    def _sample(
        self, twin: TwinStep, count: int = 1, interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        samples = cold_seconds(
            twin.step, twin.arguments, self._cold_cache, twin.evict_before, count, interrupted
        )
        twin.samples_seconds.extend(samples)


def twin_inputs(
    twin: Served, buckets: list[int], cache_dtype: torch.dtype, real: Buffers
) -> Iterator[tuple[Phase, int, Arguments]]:
    """(phase, bucket, arguments) of each twin step: decode at every bucket, prefill at the smallest.

    Tokens and cache have symbolic sizes where those of `real`, the buffers of the served model, have.
    """
    tokens = 2 * TWIN_TOKENS if len(real.chunks) > 1 else TWIN_TOKENS
    for bucket, buffers in allocate(twin, buckets, tokens, cache_dtype, TWIN_TOKENS).items():
        yield "decode", bucket, buffers.arguments("decode")
        if bucket == min(buckets):
            yield "prefill", bucket, buffers.arguments("prefill", TWIN_TOKENS)


def cold_seconds(
    step: Step,
    arguments: Arguments,
    cold_cache: ColdCacheEmulation | None,
    evict_before: bool,
    count: int = 1,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[float]:
    """Host seconds of `count` calls of `step`, in the state in which serving calls it.

    That is: after others of its mode, and with caches as cold as `cold_cache` makes them, before each call
    (`evict_before`) or inside it, which is taken off the clock. Fewer where `interrupted` became true.
    """
    samples: list[float] = []
    for _ in range(LEAD_STEPS_OF_FLOOR + count):
        if interrupted():
            break
        if cold_cache is not None and evict_before:
            cold_cache.evict()
        if arguments[0].is_cuda:
            torch.cuda.synchronize()
        reading_ns = cold_cache.reading_ns if cold_cache is not None else 0
        began = perf_counter_ns()
        step(*arguments)
        ended = perf_counter_ns()
        if cold_cache is not None:
            reading_ns = cold_cache.reading_ns - reading_ns
        samples.append((ended - began - reading_ns) / 1e9)
    return samples[LEAD_STEPS_OF_FLOOR:]
