"""Builds the parts of one engine life: model, twin, buffers, modes; and describes them to the front."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from models.opening import content_hash, open_tokenizer, revision
from models.served import NoTwin, Served, ServedTokenizer
from service.engine.cache_doubt import CacheDoubt
from service.engine.cold_starts import ColdStarts
from service.engine.prompts import most_prompt_bytes
from service.engine.stack_shares import StackShares
from service.engine.warmup import Warmup
from service.protocol.messages import EngineSettings
from service.protocol.status import EngineStatus, MemoryBandwidth, ModeStatus
from service.step.bandwidth import memory_bandwidth, step_bytes
from service.step.buffers import Buffers, allocate
from service.step.calibration import Calibration, twin_inputs
from service.step.callables import build_step
from service.step.compile_cache import code_of, compile_cache
from service.step.device import device_name, memory
from service.step.device_errors import free_memory, is_out_of_memory
from service.step.loaded_model import LoadedModel, load_model
from service.step.null_kernel import NullKernel, measure_null_kernel
from service.step.parity import DECODE_STEPS
from service.step.precision import Precision


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """What an engine measures of its machine, once; `memory_bandwidth` None: the device is too full."""

    null_kernel: NullKernel
    memory_bandwidth: MemoryBandwidth | None


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of an engine; built once, before anything is compiled."""

    settings: EngineSettings
    loaded: LoadedModel
    tokenizer: ServedTokenizer
    buffers: dict[int, Buffers]
    calibration: Calibration
    warmup: Warmup
    no_twin: str | None

    @property
    def no_request_samples(self) -> str | None:
        """Why no request can be sampled; None where one can."""
        if self.loaded.device.type != "cpu":
            return "dispatch is measured on this device, not estimated from samples"
        if self.settings.instrumentation == "off":
            return "instrumentation is off: start the service without LAUNCHBOUND_INSTRUMENTATION"
        return self.warmup.floors.stacks.missing

    def measure(self) -> MeasuredMachine:
        """Measure the machine. On CUDA this gives the allocators' unused memory back to the device."""
        weights = step_bytes(self.loaded.model, self.buffers[max(self.buffers)]).weights
        return MeasuredMachine(measure_null_kernel(self.loaded.device), self._bandwidth(weights))

    def status(self, measured: MeasuredMachine | None = None) -> EngineStatus:
        """The engine's and its machine's status; with what was `measured` of it that of a warm engine."""
        loaded = self.loaded
        config = loaded.model.config
        settings = self.settings
        null_kernel = measured.null_kernel if measured else None
        moved = step_bytes(loaded.model, self.buffers[max(self.buffers)])
        return EngineStatus(
            pid=os.getpid(),
            model=settings.model,
            model_hash=content_hash(settings.model),
            model_revision=revision(settings.model),
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
            null_kernel_seconds=null_kernel.seconds if null_kernel else None,
            no_null_kernel_graph=null_kernel.no_graph if null_kernel else None,
            attention=self.warmup.attention,
            memory_bandwidth=measured.memory_bandwidth if measured else None,
            step_bytes=moved,
            no_twin=self.no_twin,
            no_stacks=self.warmup.floors.stacks.missing,
            no_request_samples=self.no_request_samples,
            batching=settings.batching,
            batch_window_ms=settings.batch_window_ms if settings.batching == "window" else None,
            warm=measured is not None,
        )

    def _bandwidth(self, weight_bytes: int) -> MemoryBandwidth | None:
        """None where a device is too full to measure: the roof is worth no engine."""
        try:
            return memory_bandwidth(self.loaded.device, weight_bytes)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            free_memory(error)
            return None


def build_parts(
    settings: EngineSettings, announce: Callable[[ModeStatus], None], doubts_cache: bool = False
) -> EngineParts:
    """Load the model and allocate everything else around it.

    `doubts_cache`: CacheBroken may end warm-up, and who runs it then starts another process.

    Raises ValueError, with the remedy, for a device, dtype, core, checkpoint, context or tokenizer that
    cannot work.
    """
    loaded = load_model(settings)
    model, precision = loaded.model, loaded.precision
    _refuse_short_context(model.config.context, settings.prefill_chunk)
    largest = max(settings.batch_sizes)
    tokenizer = open_tokenizer(settings.model, model.config.vocabulary)
    twin, no_twin = twin_of(model)
    buffers = allocate(model, settings.batch_sizes, settings.prefill_chunk, precision.cache)
    stacks = StackShares(buffers, on_cpu=loaded.device.type == "cpu")
    # Where stacks are sampled they tell the batches apart, and a compiled twin takes ten seconds to compile.
    with_twin = settings.batch_sizes if stacks.missing else [min(settings.batch_sizes)]
    hollow = list(twin_inputs(twin, with_twin, precision.cache, buffers[largest])) if twin else []
    calibration = Calibration(model, twin)
    build_one = partial(build_step, precision=precision)
    compiled, key = compile_cache(settings.cache_folder), _compiled_key(settings, precision)
    warmup = Warmup(
        settings.modes,
        model,
        buffers,
        hollow,
        calibration,
        announce,
        build_one,
        ColdStarts(compiled, key),
        stacks,
        CacheDoubt(code_of(settings.cache_folder, settings.model), key) if doubts_cache else None,
    )
    return EngineParts(settings, loaded, tokenizer, buffers, calibration, warmup, no_twin)


def _refuse_short_context(context: int, chunk: int) -> None:
    """Parity is checked on a whole chunk of prompt and the decode steps behind it."""
    if context < chunk + DECODE_STEPS:
        raise ValueError(
            f"a context of {context} has no room for {DECODE_STEPS} tokens behind a chunk of {chunk}: "
            f"set LAUNCHBOUND_PREFILL_CHUNK to {max(1, chunk // 2)}"
        )


def _compiled_key(settings: EngineSettings, precision: Precision) -> str:
    """Names what these settings compile."""
    sizes = (settings.prefill_chunk, settings.context, settings.threads, settings.device)
    return f"{content_hash(settings.model)} {precision.name} {sizes}"


def twin_of(model: Served) -> tuple[Served | None, str | None]:
    """The hollow twin of `model`; where there can be none, None and the reason, which is logged on a CPU."""
    try:
        return model.twin(), None
    except NoTwin as missing:
        if not next(model.parameters()).is_cuda:
            print(f"launchbound engine: dispatch is not measured on this CPU: {missing}", file=sys.stderr)
        return None, str(missing)
