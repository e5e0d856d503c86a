"""Builds the parts of one engine life: model, twin, buffers, modes; and describes them to the front."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from models.opening import content_hash, open_model, open_tokenizer
from models.served import NoTwin, Served, ServedTokenizer
from service.engine.cold_starts import ColdStarts
from service.engine.stack_shares import StackShares
from service.engine.warmup import Warmup
from service.protocol.messages import EngineSettings
from service.protocol.placement import engine_cpus
from service.protocol.status import EngineStatus, ModeStatus
from service.step.buffers import Buffers, allocate
from service.step.calibration import Calibration, twin_inputs
from service.step.callables import build_step
from service.step.device import choose_device, device_name, memory
from service.step.null_kernel import null_kernel_seconds
from service.step.precision import Precision, choose_precision
from service.step.process_state import compile_cache


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of an engine; built once, before anything is compiled."""

    settings: EngineSettings
    device: torch.device
    precision: Precision
    cpus: list[int]
    model: Served
    tokenizer: ServedTokenizer
    buffers: dict[int, Buffers]
    calibration: Calibration
    warmup: Warmup
    no_twin: str | None

    def status(self, warm: bool) -> EngineStatus:
        """The engine's and its machine's status; the null kernel is measured only once it is warm."""
        config = self.model.config
        settings = self.settings
        return EngineStatus(
            pid=os.getpid(),
            model=settings.model,
            model_hash=content_hash(settings.model),
            parameters=sum(p.numel() for p in self.model.parameters()),
            layers=config.layers,
            width=config.width,
            context=config.context,
            prefill_chunk=settings.prefill_chunk,
            batch_buckets=sorted(self.buffers),
            device=self.device.type,
            device_name=device_name(self.device),
            dtype=self.precision.name,
            torch=str(torch.__version__),
            cuda=torch.version.cuda,
            threads=torch.get_num_threads(),
            cpus=self.cpus,
            modes=list(self.warmup.modes),
            memory=memory(self.device),
            peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            null_kernel_seconds=null_kernel_seconds(self.device) if warm else None,
            no_twin=self.no_twin,
            no_stacks=self.warmup.stacks.missing,
            warm=warm,
        )


def build_parts(settings: EngineSettings, announce: Callable[[ModeStatus], None]) -> EngineParts:
    """Load the model and allocate everything else around it.

    Raises ValueError, with the remedy, for a device, dtype, core, checkpoint or tokenizer that cannot work.
    """
    device = choose_device(settings.device)
    precision = choose_precision(settings.dtype, device)
    cpus = engine_cpus(settings.cpus)
    torch.set_num_threads(settings.threads or len(cpus))
    largest = max(settings.batch_sizes)
    model = open_model(
        settings.model,
        largest,
        device,
        precision.weights,
        precision.cache,
        settings.context,
        settings.prefill_chunk,
    )
    tokenizer = open_tokenizer(settings.model, model.config.vocabulary)
    twin, no_twin = twin_of(model)
    buffers = allocate(model, settings.batch_sizes, settings.prefill_chunk, precision.cache)
    stacks = StackShares(buffers, on_cpu=device.type == "cpu")
    # Where stacks are sampled they tell the batches apart, and a compiled twin takes ten seconds to compile.
    with_twin = settings.batch_sizes if stacks.missing else [min(settings.batch_sizes)]
    hollow = list(twin_inputs(twin, with_twin, precision.cache, buffers[largest])) if twin else []
    calibration = Calibration(model, twin)
    build_one = partial(build_step, precision=precision)
    warmup = Warmup(
        settings.modes,
        model,
        buffers,
        hollow,
        calibration,
        announce,
        build_one,
        _cold_starts(settings, precision),
        stacks,
    )
    return EngineParts(
        settings, device, precision, cpus, model, tokenizer, buffers, calibration, warmup, no_twin
    )


def _cold_starts(settings: EngineSettings, precision: Precision) -> ColdStarts:
    """The record of cold compilations of what these settings compile."""
    sizes = (settings.prefill_chunk, settings.context, settings.threads, settings.device)
    key = f"{content_hash(settings.model)} {precision.name} {sizes}"
    return ColdStarts(compile_cache(settings.cache_folder), key)


def twin_of(model: Served) -> tuple[Served | None, str | None]:
    """The hollow twin of `model`; where there can be none, None and the reason, which is logged on a CPU."""
    try:
        return model.twin(), None
    except NoTwin as missing:
        if not next(model.parameters()).is_cuda:
            print(f"launchbound engine: dispatch is not measured on this CPU: {missing}", file=sys.stderr)
        return None, str(missing)
