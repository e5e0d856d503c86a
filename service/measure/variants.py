"""Decode steps of variants of the served model: other widths, hollow, with injected work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import msgspec

from models.checkpoint import config_of
from models.config import Config
from models.served import Served
from service.measure.cases import Bench, CacheEviction, Case, build_case
from service.measure.isolation import OffCpuTime, isolated
from service.measure.reshaped import reshaped
from service.protocol.messages import EngineSettings
from service.protocol.modes import MODES
from service.step.buffers import allocate
from service.step.calibration import cold_seconds
from service.step.callables import InjectedWork
from service.step.cold_cache import ColdCacheEmulation, issued_by_operator, weights_by_reader


class Variants:
    """Warmed decode steps at batch 1, each with its own buffers. `config` None is the served model itself.

    On a CPU every variant with fewer weights than the served model runs under cold-cache emulation. Raises
    ValueError, with the remedy, for settings that cannot work and for a model that is not one of ours.
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
        self._cold_cache = ColdCacheEmulation(self._bench.model) if self.device.type == "cpu" else None
        self._models: dict[tuple[Config, bool], Served] = {(self.config, False): self._bench.model}
        self._cases: dict[tuple[str, Config, InjectedWork | None], Case] = {}
        self._served_bench: Bench | None = None

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
            by_operator = issued_by_operator(MODES[mode], self.device.type)
            model = self._model_of(config, by_operator)
            buffers = allocate(model, [1], 1, self.precision.cache)[1]
            eviction = self._eviction(model, config, by_operator)
            self._cases[key] = build_case(mode, "decode", model, buffers, self.precision, injected, eviction)
        return self._cases[key]

    def twin(self, mode: str, injected: InjectedWork | None = None, width: int = 16) -> Case:
        """The hollow twin of `mode`'s decode step."""
        return self.case(mode, self.config.hollow(width), injected)

    def floor_seconds(
        self, twin: Case, samples: int = 3, pick: Callable[[list[float]], float] = median
    ) -> float:
        """The median (or another `pick`) of a few samples of the floor, by the calibration's own code."""
        cache = twin.eviction.cache if twin.eviction else None
        before_step = twin.eviction.before_step if twin.eviction else False
        return pick(cold_seconds(twin.step, twin.arguments, cache, before_step, samples))

    def weights_bytes(self, config: Config) -> int:
        """Size of all weights that a decode step of the model of this shape reads, each counted once."""
        return sum(weights_by_reader(self._model_of(config, cooled=False)).values())

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Within: on the engine's cores, what it loses of them counted in `off_cpu`."""
        with isolated(self.cpus), self.off_cpu.counted():
            yield

    def _eviction(self, model: Served, config: Config, by_operator: bool) -> CacheEviction | None:
        if self._cold_cache is None:
            return None
        before_step = not by_operator and config != self.config
        return CacheEviction(self._cold_cache, before_step, sum(weights_by_reader(model).values()))

    def _model_of(self, config: Config, cooled: bool) -> Served:
        """The model of this shape; `cooled`: under cold-cache emulation, where it is not the served one."""
        cooled = cooled and self._cold_cache is not None and config != self.config
        if (config, cooled) not in self._models:
            model = reshaped(self._bench.model, config, 1, self.device, self.precision)
            if cooled and self._cold_cache is not None:
                self._cold_cache.patch_modules(model)
            self._models[config, cooled] = model
        return self._models[config, cooled]
