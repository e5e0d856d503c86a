"""Steps on the bench: real and hollow, of every mode, built as the engine builds them and on its cores."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from models.checkpoint import build
from models.config import Config
from models.transformer import Transformer
from service.protocol.messages import EngineSettings
from service.protocol.modes import MODES
from service.protocol.placement import engine_cpus, pin
from service.selftest.disturbance import Disturbance
from service.step.buffers import Buffers, allocate, prepare
from service.step.calibration import cold_seconds
from service.step.callables import InjectedWork, Step, build_step
from service.step.cold_cache import ColdCacheEmulation, issued_by_operator, weights_by_reader
from service.step.device import choose_device
from service.step.precision import choose_precision

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAD_STEPS = 3
"""Untimed steps before timed ones: a mode's first step after another mode's is slower."""

WARM_CALLS = 4
Pick = Callable[[list[float]], float]

POSITION = 100
"""Where decode stands. Attention runs over the whole static cache, so that it matters little."""


@dataclass(frozen=True, slots=True)
class Case:
    """A warmed decode step at batch 1 with its own buffers.

    Where it is of a model with fewer weights than the served one, `cold_cache` reads the difference: before
    each step (`emptied_before`) or inside, off the clock.
    """

    step: Step
    buffers: Buffers
    cold_cache: ColdCacheEmulation | None = None
    emptied_before: bool = False
    own_bytes: int = 0

    def call_seconds(self, clock: Callable[[], int] = perf_counter_ns) -> float:
        """One call by `clock`: on a CPU the whole step less its cold_cache, on CUDA its dispatch."""
        arguments = self.buffers.arguments("decode")
        if self.cold_cache and self.emptied_before:
            self.cold_cache.evict(self.own_bytes)
        paused_ns = self.cold_cache.reading_ns if self.cold_cache else 0
        began = clock()
        self.step(*arguments)
        ended = clock()
        paused_ns = self.cold_cache.reading_ns - paused_ns if self.cold_cache else 0
        return (ended - began - paused_ns) / 1e9

    def decode_seconds(self, steps: int = 5, pick: Pick = median) -> float:
        """The median (or another `pick`) of `steps` calls in a row, as in the middle of a request."""
        for _ in range(LEAD_STEPS):
            self.call_seconds()
        return pick([self.call_seconds() for _ in range(steps)])


class Lab:
    """Builds cases when they are first asked for. `config` None is the served model itself."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings, self.modes = settings, settings.modes
        self.device = choose_device(settings.device)
        self.precision = choose_precision(settings.dtype, self.device)
        self.cpus = engine_cpus(settings.cpus)
        torch.set_num_threads(settings.threads or len(self.cpus))
        self._model = self._fit(build(settings.model, 1, self.device, self.precision.weights))
        self.config: Config = self._model.config
        self._cold_cache = ColdCacheEmulation(self._model) if self.device.type == "cpu" else None
        self.disturbance = Disturbance()
        self._models: dict[tuple[Config, bool], Transformer] = {(self.config, False): self._model}
        self._cases: dict[tuple[str, Config, InjectedWork | None], Case] = {}

    def case(self, mode: str, config: Config | None = None, injected: InjectedWork | None = None) -> Case:
        """The decode step of `mode`; compiled here where it is new, which takes seconds."""
        config = config or self.config
        key = mode, config, injected
        if key not in self._cases:
            by_operator = issued_by_operator(MODES[mode], self.device.type)
            model = self._model_of(config, by_operator)
            step = build_step(MODES[mode], model, injected, self.precision)
            buffers = allocate(model, [1], 1, self.precision.cache)[1]
            prepare(buffers, min(POSITION, config.context - 1))
            for _ in range(WARM_CALLS):
                step(*buffers.arguments("decode"))
            emptied_before = not by_operator and config != self.config
            own_bytes = sum(weights_by_reader(model).values())
            self._cases[key] = Case(step, buffers, self._cold_cache, emptied_before, own_bytes)
        return self._cases[key]

    def twin(self, mode: str, injected: InjectedWork | None = None, width: int = 16) -> Case:
        """The hollow twin of `mode`'s decode step."""
        return self.case(mode, self.config.hollow(width), injected)

    def floor_seconds(self, twin: Case, samples: int = 3, pick: Pick = median) -> float:
        """The median (or another `pick`) of a few samples of the floor, by the calibration's own code."""
        return pick(cold_seconds(twin.step, twin.buffers, twin.cold_cache, twin.emptied_before, samples))

    def weights_bytes(self, config: Config) -> int:
        """Size of all weights of the model of this shape, each counted once."""
        return sum(p.numel() * p.element_size() for p in self._model_of(config, cooled=False).parameters())

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Within: on the engine's cores, and nothing of what was built is visited by the collector."""
        before = os.sched_getaffinity(0)
        gc.collect()
        gc.freeze()
        pin(self.cpus, exempt=set())
        try:
            with self.disturbance.noted():
                yield
        finally:
            pin(sorted(before), exempt=set())

    def _model_of(self, config: Config, cooled: bool) -> Transformer:
        """The model of this shape; `cooled`: its blocks read what they have less than the served one's."""
        cooled = cooled and self._cold_cache is not None and config != self.config
        if (config, cooled) not in self._models:
            model = self._fit(Transformer(config, 1).eval().to(self.device, self.precision.weights))
            if cooled and self._cold_cache is not None:
                self._cold_cache.patch_modules(model)
            self._models[config, cooled] = model
        return self._models[config, cooled]

    def _fit(self, model: Transformer) -> Transformer:
        model.rotary = model.rotary.to(self.precision.cache)
        return model
