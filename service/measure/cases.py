"""Warmed steps of the served model or module, and of a shallow model like it, built as the engine does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from models.config import Config
from models.naming import is_called
from models.served import Served, lay_out, layout_of
from models.transformer import Transformer
from service.measure.cpu_sampler import CpuSampler
from service.measure.rounds import OffCpuTime, isolated
from service.modes import MODES, Mode, named_modes
from service.records import EngineSettings, Phase
from service.step.buffers import (
    CALLS_TO_CAPTURE,
    Arguments,
    Buffers,
    ModuleArguments,
    StepArguments,
    StepInputs,
    allocate,
    lead_steps,
    measured_arguments,
    set_positions,
)
from service.step.callables import BREAKS, SERVED, AnyStep, InjectedWork, StepForm, build_step, step_of
from service.step.compile_cache import compile_cache
from service.step.loaded_model import LoadedModel, LoadedModule, Precision, load_model, load_module
from service.step.module_inputs import ModuleInputs
from service.step.module_step import MODULE
from service.workloads import FORWARD, GENERATE, Workload

FEW_WORDS = 512
"""Logits of a shallow model: the head's product must not outweigh its layers."""


@dataclass(frozen=True, slots=True)
class AnyCase:
    """A warmed step of one mode in `phase`, on static `inputs` that no call moves. `breaks`: its compiler
    could not take it as one graph, and leaves the graph.
    """

    mode: str
    phase: Phase
    step: AnyStep
    inputs: StepInputs
    breaks: bool = False

    @property
    def arguments(self) -> StepArguments:
        """What the step is called with."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where its inputs lie."""
        return next(leaf.device for leaf in tree_leaves(tuple(self.arguments)) if isinstance(leaf, Tensor))

    def call(self) -> Any:  # noqa: ANN401 - the step's result
        """One call, not synchronised on CUDA; returns what the step returns."""
        return self.step(*self.arguments)

    def call_seconds(self) -> float:
        """One call: on a CPU the whole step, on CUDA dispatch."""
        arguments = self.arguments
        began = perf_counter_ns()
        self.step(*arguments)
        return (perf_counter_ns() - began) / 1e9

    def steady_seconds(self, steps: int) -> float:
        """The median of `steps` calls in a row after untimed ones, as in a request."""
        lead = lead_steps(self.phase)
        return median([self.call_seconds() for _ in range(lead + steps)][lead:])

    def warm(self) -> None:
        """Call the step until it is in its final form."""
        for _ in range(CALLS_TO_CAPTURE):
            self.call()


@dataclass(frozen=True, slots=True)
class Case(AnyCase):
    """A step of a language model at `buffers.bucket`, which stays at its place in the cache. It returns
    logits [bucket, vocabulary] and greedy tokens [bucket].

    `buffers` are shared but for `positions` and `last`: decode's are out of prefill's reach.
    """

    inputs: Buffers

    @property
    def buffers(self) -> Buffers:
        return self.inputs

    @property
    def arguments(self) -> Arguments:
        """In prefill with PREFILL_TOKENS per row, or fewer that fit."""
        return measured_arguments(self.buffers, self.phase)


@dataclass(frozen=True, slots=True)
class ModuleCase(AnyCase):
    """A call of a user's module, in the first of its sizes."""

    inputs: ModuleInputs

    @property
    def arguments(self) -> ModuleArguments:
        return self.inputs.first.arguments


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
    case.warm()
    return case


class AnyBench:
    """What is served and steps of it, in a process that may compile.

    `kind` has the phases of its steps, which are made of `module` in its `form`; `inputs` has by batch size
    what they are called on.
    """

    kind: Workload
    form: StepForm
    module: nn.Module
    inputs: Mapping[int, StepInputs]

    def __init__(self, settings: EngineSettings, loaded: LoadedModel | LoadedModule) -> None:
        self.settings = settings
        self.modes = named_modes(settings.modes)
        self.device, self.precision, self.cpus = loaded.device, loaded.precision, loaded.cpus
        self.off_cpu = OffCpuTime()
        self._sampler: CpuSampler | None = None

    def case(self, mode: str, bucket: int, phase: Phase) -> AnyCase:
        """The warmed step, on inputs that all modes share; a new one takes seconds to compile.

        Raises KeyError for a mode or bucket that is not configured.
        """
        raise NotImplementedError

    def forget(self) -> None:
        """Drop every case, after something has reset the compiler's state of this process."""
        raise NotImplementedError

    def build(self, mode: Mode) -> AnyStep:
        """A new step of `mode`."""
        return step_of(mode, self.module, self.form, self.device.type, precision=self.precision)

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


class Bench(AnyBench):
    """The served language model and steps of it.

    Raises ValueError, with the remedy, for a device, dtype, core or checkpoint that cannot work.
    """

    kind = GENERATE
    form = SERVED

    def __init__(self, settings: EngineSettings) -> None:
        loaded = load_model(settings)
        super().__init__(settings, loaded)
        self.linears = loaded.linears
        self.module = self.model = loaded.model
        self.buffers = allocate(
            self.model, settings.batch_sizes, settings.prefill_chunk, self.precision.cache
        )
        self.inputs = self.buffers
        self._cases: dict[tuple[str, int, Phase, int], Case] = {}
        self._shallow: dict[tuple[int, int], tuple[Served, Buffers]] = {}

    def case(self, mode: str, bucket: int, phase: Phase = "decode") -> Case:
        """As of `AnyBench`, on tokens and cache that all modes share."""
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
        self._cases.clear()


class ModuleBench(AnyBench):
    """The served module of a user and calls of it. Raises ValueError as `Bench`, and for code of the user's
    that cannot work.
    """

    kind = FORWARD
    form = MODULE

    def __init__(self, settings: EngineSettings) -> None:
        loaded = load_module(settings)
        super().__init__(settings, loaded)
        self.user = loaded.user
        self.module = self.user.module
        self.inputs: dict[int, ModuleInputs] = {
            batch: ModuleInputs(self.user, batch) for batch in settings.batch_sizes
        }
        self._cases: dict[tuple[str, int], ModuleCase] = {}

    def case(self, mode: str, bucket: int, phase: Phase = "forward") -> ModuleCase:
        """As of `AnyBench`; a mode whose compiler cannot take the module as one graph has breaks."""
        key = mode, bucket
        if key not in self._cases:
            row = MODES[mode]
            try:
                self._cases[key] = self._warmed(row, bucket)
            except BREAKS:
                if not row.effect(self.device.type).is_one_graph:
                    raise
                self._cases[key] = self._warmed(row.with_breaks(), bucket, breaks=True)
        return self._cases[key]

    def forget(self) -> None:
        self._cases.clear()

    def _warmed(self, mode: Mode, batch: int, breaks: bool = False) -> ModuleCase:
        self.inputs[batch].prepare()
        case = ModuleCase(mode.name, "forward", self.build(mode), self.inputs[batch], breaks)
        case.warm()
        return case


def open_bench(settings: EngineSettings) -> AnyBench:
    """Of what `settings.model` names. Raises ValueError, with the remedy, for what cannot work."""
    return ModuleBench(settings) if is_called(settings.model) else Bench(settings)
