"""Builds the parts of an engine: model, buffers, modes; and describes them to the front."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from models.served import ServedTokenizer
from service.engine.compiler import CacheRetry, ColdStarts
from service.engine.step_shares import StepShares
from service.engine.text import most_prompt_bytes
from service.engine.warmup import Warmup
from service.records import EngineSettings, EngineStatus, MatrixRate, MemoryBandwidth, ModeStatus
from service.step.buffers import Buffers, allocate
from service.step.callables import build_step
from service.step.compile_cache import code_of
from service.step.device import device_name, free_memory, is_out_of_memory, memory
from service.step.loaded_model import LoadedModel, load_model
from service.step.parity import DECODE_STEPS
from service.step.roofs import matrix_rate, memory_bandwidth, step_bytes, step_flops

Roof = TypeVar("Roof", MemoryBandwidth, MatrixRate)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of an engine; built once, before anything is compiled."""

    settings: EngineSettings
    loaded: LoadedModel
    tokenizer: ServedTokenizer
    buffers: dict[int, Buffers]
    warmup: Warmup
    shares: StepShares

    def measure(self) -> dict[str, Any]:
        """Measure the machine, for the status; a roof is None where the device is too full for it."""
        device, precision = self.loaded.device, self.loaded.precision
        weights = step_bytes(self.loaded.model, self.buffers[max(self.buffers)]).weights
        return {
            "memory_bandwidth": _unless_full(lambda: memory_bandwidth(device, weights)),
            "matrix_rate": _unless_full(lambda: matrix_rate(device, precision.autocast or precision.weights)),
        }

    def status(self, measured: Mapping[str, Any] | None = None) -> EngineStatus:
        """The engine's and its machine's status; with what was `measured` of it that of a warm engine."""
        loaded = self.loaded
        config, settings = loaded.model.config, self.settings
        return EngineStatus(
            pid=os.getpid(),
            model=settings.model,
            model_hash=loaded.opened.content_hash,
            model_revision=loaded.opened.revision,
            parameters=loaded.parameters,
            layers=config.layers,
            width=config.width,
            context=config.context,
            prompt_bytes=most_prompt_bytes(self.tokenizer, config.context),
            prefill_chunk=settings.prefill_chunk,
            batch_buckets=sorted(self.buffers),
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
            attention=self.warmup.attention,
            step_bytes=step_bytes(loaded.model, self.buffers[max(self.buffers)]),
            step_flops=step_flops(loaded.model),
            blas=blas_libraries(torch.__config__.show()),
            no_samples=self.shares.missing,
            batching=settings.batching,
            warm=measured is not None,
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
    loaded = load_model(settings)
    model, precision = loaded.model, loaded.precision
    context, chunk = model.config.context, settings.prefill_chunk
    if context < chunk + DECODE_STEPS:  # parity is checked on a whole chunk and the decode steps behind it
        raise ValueError(
            f"a context of {context} has no room for {DECODE_STEPS} tokens behind a chunk of {chunk}: "
            f"set LAUNCHBOUND_PREFILL_CHUNK to {max(1, chunk // 2)}"
        )
    tokenizer = loaded.opened.tokenizer(model.config.vocabulary)
    buffers = allocate(model, settings.batch_sizes, chunk, precision.cache)
    code = code_of(settings.cache_folder, settings.model)
    sizes = (chunk, settings.context, settings.threads, settings.device)
    key = f"{loaded.opened.content_hash} {precision.name} {sizes}"
    shares = StepShares(code.parent, _no_samples(settings, loaded.device.type))
    warmup = Warmup(
        settings.modes,
        model,
        buffers,
        announce,
        partial(build_step, precision=precision),
        ColdStarts(code.parent, key),
        shares,
        CacheRetry(code, key) if retries_cache else None,
    )
    return EngineParts(settings, loaded, tokenizer, buffers, warmup, shares)


def _no_samples(settings: EngineSettings, device_type: str) -> str | None:
    """Why the engine's thread is not to be sampled; None where it is."""
    if device_type != "cpu":
        return "dispatch is measured on this device, not estimated from samples"
    if settings.instrumentation == "off":
        return "instrumentation is off: start the service without LAUNCHBOUND_INSTRUMENTATION"
    return None
