"""Warmed steps of the served model and of a shallow one like it, built as the engine builds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter_ns

import torch
from torch import Tensor

from models.config import Config
from models.served import Served, lay_out, layout_of
from models.transformer import Transformer
from service.measure.cpu_sampler import CpuSampler
from service.measure.rounds import OffCpuTime, isolated
from service.modes import MODES
from service.records import EngineSettings, Phase
from service.step.buffers import (
    CALLS_TO_CAPTURE,
    LEAD_STEPS,
    LEAD_STEPS_OF_PREFILL,
    Arguments,
    Buffers,
    allocate,
    measured_arguments,
    set_positions,
)
from service.step.callables import InjectedWork, Step, build_step
from service.step.compile_cache import compile_cache
from service.step.loaded_model import Precision, load_model

FEW_WORDS = 512
"""Logits of a shallow model: the head's product must not outweigh its layers."""


@dataclass(frozen=True, slots=True)
class Case:
    """A warmed step of one mode, at `buffers.bucket` and in `phase`, which stays at its place in the cache.

    `buffers` are shared but for `positions` and `last`: decode's are out of prefill's reach.
    """

    mode: str
    phase: Phase
    step: Step
    buffers: Buffers

    @property
    def arguments(self) -> Arguments:
        """What the step is called with: in prefill with PREFILL_TOKENS per row, or fewer that fit."""
        return measured_arguments(self.buffers, self.phase)

    def call(self) -> tuple[Tensor, Tensor]:
        """One call, not synchronised on CUDA; logits [bucket, vocabulary] and greedy tokens [bucket]."""
        return self.step(*self.arguments)

    def call_seconds(self) -> float:
        """One call: on a CPU the whole step, on CUDA dispatch."""
        arguments = self.arguments
        began = perf_counter_ns()
        self.step(*arguments)
        return (perf_counter_ns() - began) / 1e9

    def steady_seconds(self, steps: int) -> float:
        """The median of `steps` calls in a row after untimed ones, as in a request."""
        lead = LEAD_STEPS if self.phase == "decode" else LEAD_STEPS_OF_PREFILL
        return median([self.call_seconds() for _ in range(lead + steps)][lead:])


def build_case(
    mode: str,
    phase: Phase,
    model: Served,
    buffers: Buffers,
    precision: Precision,
    injected: InjectedWork | None = None,
) -> Case:
    """A step of `mode` on `model` and `buffers`, compiled where the mode compiles, and warmed."""
    buffers = buffers.with_own_positions()
    set_positions(buffers, phase)
    case = Case(mode, phase, build_step(MODES[mode], model, injected, precision), buffers)
    for _ in range(CALLS_TO_CAPTURE):
        case.call()
    return case


class Bench:
    """The served model and steps of it, in a process that may compile.

    Raises ValueError, with the remedy, for a device, dtype, core or checkpoint that cannot work.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.modes = settings.modes
        loaded = load_model(settings)
        self.device, self.precision, self.cpus = loaded.device, loaded.precision, loaded.cpus
        self.model, self.linears = loaded.model, loaded.linears
        self.buffers = allocate(
            self.model, settings.batch_sizes, settings.prefill_chunk, self.precision.cache
        )
        self.off_cpu = OffCpuTime()
        self._sampler: CpuSampler | None = None
        self._cases: dict[tuple[str, int, Phase, int], Case] = {}
        self._shallow: dict[tuple[int, int], tuple[Served, Buffers]] = {}

    def case(self, mode: str, bucket: int, phase: Phase = "decode") -> Case:
        """The warmed step, on tokens and cache that all modes share; a new one takes seconds to compile.

        Raises KeyError for a mode or bucket that is not configured.
        """
        return self.shallow_case(mode, bucket, phase, self.model.config.layers)

    def shallow_case(self, mode: str, bucket: int, phase: Phase, layers: int) -> Case:
        """The warmed step of a model of so many layers and at most FEW_WORDS logits.

        For what takes too long on the whole one; with as many layers as that has it is `case`. Raises
        KeyError as `case`, ValueError for fewer layers of a model that is not one of ours.
        """
        key = mode, bucket, phase, min(layers, self.model.config.layers)
        if key not in self._cases:
            model, buffers = self._model_of(bucket, key[3])
            self._cases[key] = build_case(mode, phase, model, buffers, self.precision)
        return self._cases[key]

    def injected_case(self, mode: str, injected: InjectedWork) -> Case:
        """A warmed decode step at batch 1 of one layer, `injected` at its end. Raises as `shallow_case`."""
        model, buffers = self._model_of(1, 1)
        return build_case(mode, "decode", model, buffers, self.precision, injected)

    def _model_of(self, bucket: int, layers: int) -> tuple[Served, Buffers]:
        config = self.model.config
        if layers == config.layers:
            return self.model, self.buffers[bucket]
        if (bucket, layers) not in self._shallow:
            if not isinstance(config, Config):
                raise ValueError(f"only models of launchbound's own have fewer layers: {config.layers} here")
            config = replace(config, layers=layers, vocabulary=min(FEW_WORDS, config.vocabulary))
            model = Transformer(config, bucket).eval().to(self.device, self.precision.weights)
            model.rotary = model.rotary.to(self.precision.cache)
            lay_out(model, layout_of(self.model))
            buffers = allocate(model, [bucket], self.settings.prefill_chunk, self.precision.cache)[bucket]
            self._shallow[bucket, layers] = model, buffers
        return self._shallow[bucket, layers]

    def forget(self) -> None:
        """Drop every case, after something has reset the compiler's state of this process."""
        self._cases.clear()

    @property
    def sampler(self) -> CpuSampler:
        """Of the thread that asks for it first, which is to run the steps. Raises SamplerError."""
        if self._sampler is None:
            self._sampler = CpuSampler(compile_cache(self.settings.cache_folder))
        return self._sampler

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Within: on the engine's cores, what it loses of them counted in `off_cpu`."""
        with isolated(self.cpus), self.off_cpu.counted():
            yield

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
