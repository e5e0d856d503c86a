"""Steps on the bench: any mode, batch and phase, built as the engine builds them, when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

import torch
from torch import Tensor

from models.opening import open_model
from service.protocol.messages import EngineSettings, Phase
from service.protocol.modes import MODES
from service.protocol.placement import engine_cpus
from service.step.buffers import Buffers, allocate
from service.step.callables import Step, build_step
from service.step.device import choose_device
from service.step.precision import choose_precision

WARM_CALLS = 4
"""Calls after which a callable is in its final form: compile, CUDA-graph warm-up, capture, replay."""

DECODE_POSITION = 100
"""Where decode stands. Attention runs over the whole static cache, so that it matters little."""


@dataclass(frozen=True, slots=True)
class Case:
    """A warmed step of one mode, at `buffers.bucket` and in `phase`."""

    mode: str
    phase: Phase
    step: Step
    buffers: Buffers

    def call(self) -> tuple[Tensor, Tensor]:
        """One call, not waited for on CUDA; gives logits [bucket, vocabulary] and greedy tokens [bucket]."""
        return self.step(*self.buffers.arguments(self.phase))

    def call_seconds(self, clock: Callable[[], int] = perf_counter_ns) -> float:
        """One call by `clock` (nanoseconds): on a CPU the whole step, on CUDA its dispatch."""
        arguments = self.buffers.arguments(self.phase)
        began = clock()
        self.step(*arguments)
        return (clock() - began) / 1e9


class Bench:
    """The served model and steps of it, in a process that may compile.

    Raises ValueError, with the remedy, for a device, dtype, core or checkpoint that cannot work.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings, self.modes = settings, settings.modes
        self.device = choose_device(settings.device)
        self.precision = choose_precision(settings.dtype, self.device)
        self.cpus = engine_cpus(settings.cpus)
        torch.set_num_threads(settings.threads or len(self.cpus))
        self.model = open_model(
            settings.model,
            max(settings.batch_sizes),
            self.device,
            self.precision.weights,
            self.precision.cache,
            settings.context,
            settings.prefill_chunk,
        )
        self.buffers = allocate(
            self.model, settings.batch_sizes, settings.prefill_chunk, self.precision.cache
        )
        self._cases: dict[tuple[str, int, Phase], Case] = {}

    def case(self, mode: str, bucket: int, phase: Phase = "decode") -> Case:
        """The warmed step; compiled here where it is new, which takes seconds.

        Raises KeyError for a mode or bucket that is not configured.
        """
        key = mode, bucket, phase
        if key not in self._cases:
            buffers = self.buffers[bucket]
            buffers.positions.fill_(DECODE_POSITION if phase == "decode" else 0)
            case = Case(mode, phase, build_step(MODES[mode], self.model, precision=self.precision), buffers)
            for _ in range(WARM_CALLS):
                case.call()
            self._cases[key] = case
        return self._cases[key]

    def forget(self) -> None:
        """Drop every case, after something has reset the compiler's state of this process."""
        self._cases.clear()

    def synchronise(self) -> None:
        """Wait for the device; nothing on a CPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
