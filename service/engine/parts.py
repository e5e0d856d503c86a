"""Builds the parts of an engine: what it serves, its modes; and describes them to the front."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from service.engine.compiler import CacheRetry, ColdStarts
from service.engine.start_times import START
from service.engine.step_shares import StepShares
from service.engine.warmup import Warmup
from service.engine.workload import ServedWorkload, open_workload
from service.records import EngineSettings, EngineStatus, MatrixRate, MemoryBandwidth, ModeStatus
from service.step.compile_cache import code_of
from service.step.device import device_name, free_memory, is_out_of_memory, memory
from service.step.loaded_model import LoadedModel, LoadedModule
from service.step.roofs import matrix_rate, memory_bandwidth

Roof = TypeVar("Roof", MemoryBandwidth, MatrixRate)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of an engine; built once, before anything is compiled. `code` is where that is kept."""

    settings: EngineSettings
    workload: ServedWorkload
    warmup: Warmup
    shares: StepShares
    code: Path

    @property
    def loaded(self) -> LoadedModel | LoadedModule:
        return self.workload.loaded

    def measure(self) -> dict[str, Any]:
        """Measure the machine, for the status; a roof is None where the device is too full for it."""
        device, precision = self.loaded.device, self.loaded.precision
        weights = self.workload.weight_bytes
        return {
            "memory_bandwidth": _unless_full(lambda: memory_bandwidth(device, weights)),
            "matrix_rate": _unless_full(lambda: matrix_rate(device, precision.autocast or precision.weights)),
        }

    def status(self, measured: Mapping[str, Any] | None = None) -> EngineStatus:
        """The engine's and its machine's status; with what was `measured` of it that of a warm engine."""
        loaded = self.loaded
        return EngineStatus(
            pid=os.getpid(),
            model=self.settings.model,
            model_hash=loaded.content_hash,
            parameters=loaded.parameters,
            batch_buckets=sorted(self.workload.inputs),
            device=loaded.device.type,
            device_name=device_name(loaded.device),
            dtype=loaded.precision.name,
            linears=loaded.linears,
            torch=str(torch.__version__),
            cuda=torch.version.cuda,
            threads=torch.get_num_threads(),
            cpus=loaded.cpus,
            modes=list(self.warmup.modes),
            memory=memory(loaded.device),
            peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            attention=list(self.warmup.attention),
            blas=blas_libraries(torch.__config__.show()),
            no_samples=self.shares.missing,
            warm=measured is not None,
            start=None if measured is None else START.times(),
            **self.workload.described(),
            **(measured or {}),
        )


def _unless_full(measure: Callable[[], Roof]) -> Roof | None:
    try:
        return measure()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        free_memory(error)
        return None


def blas_libraries(config: str) -> str:
    """What torch was built with, and its vector instructions: "MKL 2024.2, oneDNN 3.7.1, ATen AVX2"."""
    named = {
        "MKL": r"Math Kernel Library Version ([\d.]+)",
        "oneDNN": r"MKL-DNN v([\d.]+)",
        "ATen": r"CPU capability usage: (\w+)",
    }
    found = [f"{name} {match[1]}" for name, at in named.items() if (match := re.search(at, config))]
    other = re.search(r"BLAS_INFO=(\w+)", config)
    if other and other[1] != "mkl":
        found.insert(0, f"BLAS {other[1]}")
    return ", ".join(found)


def build_parts(
    settings: EngineSettings, announce: Callable[[ModeStatus], None], retries_cache: bool = False
) -> EngineParts:
    """Load the model and allocate all around it. Raises ValueError, with the remedy, for what cannot work.

    `retries_cache`: CacheBroken may end warm-up, and the caller then starts another process.
    """
    workload = open_workload(settings)
    loaded = workload.loaded
    code = code_of(settings.cache_folder, settings.model)
    sizes = (settings.prefill_chunk, settings.context, settings.threads, settings.device)
    key = f"{loaded.content_hash} {loaded.precision.name} {sizes}"
    missing = _no_samples(settings, loaded.device.type)
    shares = StepShares(code.parent, missing, apart=not workload.kind.tokens)
    retry = CacheRetry(code, key) if retries_cache else None
    warmup = Warmup(settings.modes, workload, announce, ColdStarts(code.parent, key), shares, retry)
    return EngineParts(settings, workload, warmup, shares, code)


def _no_samples(settings: EngineSettings, device_type: str) -> str | None:
    """Why the engine's thread is not to be sampled; None where it is."""
    if device_type != "cpu":
        return "dispatch is measured on this device, not estimated from samples"
    if settings.instrumentation == "off":
        return "instrumentation is off: start the service without LAUNCHBOUND_INSTRUMENTATION"
    return None
