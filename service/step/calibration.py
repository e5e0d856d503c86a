"""The hollow twin: the same step with kernels that do next to nothing, so that its wall time is dispatch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from time import perf_counter_ns

import torch
from torch import nn

from models.served import Served
from service.protocol.modes import Mode
from service.protocol.status import Floor
from service.step.buffers import Buffers
from service.step.callables import Step
from service.step.cold_cache import ColdCacheEmulation, issued_by_operator
from service.step.floors import interpolated_floor
from service.step.twin_step import TwinStep
from service.step.untimed import LEAD_STEPS_OF_FLOOR

FIRST_SAMPLES = 21
"""Samples per (mode, bucket) before a mode is ready."""


class Calibration:
    """Dispatch floors per mode and batch, from twins at the smallest and the largest bucket.

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
        self._twins: dict[tuple[str, int], TwinStep] = {}
        self._refreshes = 0

    def twin_of(self, mode: Mode) -> Served:
        """The hollow model that `mode`'s twin steps are to be built on."""
        twin = self._by_operator if issued_by_operator(mode, self._device_type) else self._in_one_call
        if twin is None:
            raise ValueError("this model has no hollow twin")
        return twin

    def add(self, mode: Mode, step: Step, buffers: Buffers) -> None:
        """Take a warmed twin step of `mode` at `buffers.bucket` into the round."""
        evict_before = not issued_by_operator(mode, self._device_type)
        twin = TwinStep(mode.name, buffers.bucket, step, buffers, evict_before)
        self._twins[mode.name, buffers.bucket] = twin

    def remove(self, mode: str) -> None:
        """Take a mode that failed out of the round."""
        self._twins = {key: twin for key, twin in self._twins.items() if twin.mode != mode}

    def first_samples(self, mode: str) -> None:
        """Sample each of `mode`'s twins until it has enough for an interval."""
        for twin in self._twins.values():
            if twin.mode == mode:
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
        for twin in self._twins.values():
            if twin.mode == mode:
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

    def floor(self, mode: str, bucket: int) -> Floor | None:
        """Dispatch of one decode step of `mode` at `bucket`; None before it is calibrated.

        Between the two calibrated buckets the floor is interpolated linearly in the batch.
        """
        twins = [twin for twin in self._twins.values() if twin.mode == mode and twin.samples_seconds]
        if not twins:
            return None
        smallest = min(twins, key=lambda twin: twin.bucket)
        largest = max(twins, key=lambda twin: twin.bucket)
        return interpolated_floor(smallest.floor(), largest.floor(), bucket)

    def _sample(
        self, twin: TwinStep, count: int = 1, interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        samples = cold_seconds(
            twin.step, twin.buffers, self._cold_cache, twin.evict_before, count, interrupted
        )
        twin.samples_seconds.extend(samples)


def cold_seconds(
    step: Step,
    buffers: Buffers,
    cold_cache: ColdCacheEmulation | None,
    evict_before: bool,
    count: int = 1,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[float]:
    """Host seconds of `count` calls of a decode `step`, in the state in which serving calls it.

    That is: after others of its mode, and with caches as cold as `cold_cache` makes them, before each call
    (`evict_before`) or inside it, which is taken off the clock. Fewer where `interrupted` became true.
    """
    arguments = buffers.arguments("decode")
    samples: list[float] = []
    for _ in range(LEAD_STEPS_OF_FLOOR + count):
        if interrupted():
            break
        if cold_cache is not None and evict_before:
            cold_cache.evict()
        if buffers.token.is_cuda:
            torch.cuda.synchronize()
        reading_ns = cold_cache.reading_ns if cold_cache is not None else 0
        began = perf_counter_ns()
        step(*arguments)
        ended = perf_counter_ns()
        if cold_cache is not None:
            reading_ns = cold_cache.reading_ns - reading_ns
        samples.append((ended - began - reading_ns) / 1e9)
    return samples[LEAD_STEPS_OF_FLOOR:]
