"""Requests in this process whose steps are sampled, without anything of what serving does for that."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from models.served import Cache
from service.measure.cases import Bench
from service.measure.cpu_sampler import SamplerError, counts_of
from service.measure.isolation import isolated
from service.protocol.messages import EngineSettings, Phase
from service.protocol.splits import SampleCounts
from service.selftest.check import NotMeasurableError
from service.selftest.minimal_loop import MinimalLoop
from service.selftest.sampled_steps import PHASES
from service.step.callables import Step
from service.step.process_state import prepare_process


class SampledRequests:
    """In a minimal loop at batch 1, on `cpus`. Raises NotMeasurableError where none can be sampled."""

    def __init__(self, settings: EngineSettings, cpus: list[int], modes: list[str]) -> None:
        prepare_process(settings.cache_folder, settings.model)
        self._cpus = cpus
        bench = Bench(settings)
        try:
            self._sampler = bench.sampler
        except SamplerError as error:
            raise NotMeasurableError(str(error)) from error
        with torch.no_grad():
            self._loops = {mode: MinimalLoop(bench, mode, self._labelled) for mode in modes}

    @torch.no_grad()
    def run(self, mode: str, new_tokens: int, seconds: float) -> dict[Phase, SampleCounts]:
        """The samples of both phases of requests in a row for so long, at least of one.

        A request before them is not sampled.
        """
        with isolated(self._cpus):
            self._loops[mode].run(1)
            until = perf_counter() + seconds
            self._sampler.start()
            self._loops[mode].run(new_tokens)
            while perf_counter() < until:
                self._loops[mode].run(new_tokens)
            self._sampler.stop()
        taken = self._sampler.take()
        return {
            phase: counts_of([place for label, place in taken if label == number])
            for number, phase in enumerate(PHASES, 1)
        }

    def _labelled(self, step: Step, phase: Phase) -> Step:
        cell, label = self._sampler.label, PHASES.index(phase) + 1

        def run(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
            cell.value = label
            try:
                return step(tokens, positions, last, cache)
            finally:
                cell.value = 0

        return run
