"""Decode steps of variants of the served model: of another shape, with injected work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from models.checkpoint import config_of
from models.config import Config
from models.served import Served
from service.measure.cases import Bench, Case, build_case
from service.measure.cpu_sampler import CpuSampler
from service.measure.isolation import OffCpuTime, isolated
from service.measure.reshaped import reshaped
from service.records import EngineSettings
from service.step.buffers import allocate
from service.step.callables import InjectedWork


class Variants:
    """Warmed decode steps at batch 1, each with its own buffers. `config` None is the served model itself.

    Raises ValueError, with the remedy, for settings that cannot work and for a model that is not one of ours.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.config: Config = config_of(settings.model)
        alone = msgspec.structs.replace(settings, batch_sizes=[1], prefill_chunk=1, context=None)
        self._bench = Bench(alone)
        self.settings = settings
        self.modes = settings.modes
        self.device = self._bench.device
        self.precision = self._bench.precision
        self.cpus = self._bench.cpus
        self.linears = self._bench.linears
        self.off_cpu = OffCpuTime()
        self._models: dict[Config, Served] = {self.config: self._bench.model}
        self._cases: dict[tuple[str, Config, InjectedWork | None], Case] = {}
        self._served_bench: Bench | None = None

    @property
    def sampler(self) -> CpuSampler:
        """Of the thread that asks for it first, which is to run the steps. Raises SamplerError."""
        return self._bench.sampler

    @property
    def served_bench(self) -> Bench:
        """The served model with all batch sizes and the prefill chunk of the settings, built at first use."""
        if self._served_bench is None:
            self._served_bench = Bench(self.settings)
        return self._served_bench

    def case(self, mode: str, config: Config | None = None, injected: InjectedWork | None = None) -> Case:
        """The decode step of `mode`; a new one takes seconds to compile."""
        config = config or self.config
        key = mode, config, injected
        if key not in self._cases:
            model = self._model_of(config)
            buffers = allocate(model, [1], 1, self.precision.cache)[1]
            self._cases[key] = build_case(mode, "decode", model, buffers, self.precision, injected)
        return self._cases[key]

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Within: on the engine's cores, what it loses of them counted in `off_cpu`."""
        with isolated(self.cpus), self.off_cpu.counted():
            yield

    def _model_of(self, config: Config) -> Served:
        """The model of this shape."""
        if config not in self._models:
            self._models[config] = reshaped(self._bench.model, config, 1, self.device, self.precision)
        return self._models[config]
