"""Builds what one engine life consists of: model, twin, buffers, modes, and what they say of themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from models.checkpoint import TINY_FOLDER, build, content_hash, folder_of
from models.tokenizer import Tokenizer
from models.transformer import Transformer
from service.border.messages import EngineSettings, EngineStatus, ModeStatus
from service.border.placement import engine_cpus
from service.engine.warmup import Warmup
from service.step.calibration import Calibration
from service.step.callables import Buffers, allocate, build_step
from service.step.device import choose_device, device_name, memory
from service.step.null_kernel import null_kernel_seconds
from service.step.precision import Precision, choose_precision


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of an engine; built once, before anything is compiled."""

    settings: EngineSettings
    device: torch.device
    precision: Precision
    cpus: list[int]
    model: Transformer
    tokenizer: Tokenizer
    buffers: dict[int, Buffers]
    calibration: Calibration
    warmup: Warmup

    def status(self, warm: bool) -> EngineStatus:
        """What the front is told of this engine and its machine; the null kernel only once it is warm."""
        config, settings = self.model.config, self.settings
        return EngineStatus(
            pid=os.getpid(), model=settings.model, model_hash=content_hash(settings.model),
            parameters=sum(p.numel() for p in self.model.parameters()),
            layers=config.layers, width=config.width, context=config.context,
            prefill_chunk=settings.prefill_chunk, batch_buckets=sorted(self.buffers),
            device=self.device.type, device_name=device_name(self.device),
            dtype=self.precision.name, torch=str(torch.__version__),
            cuda=torch.version.cuda, threads=torch.get_num_threads(), cpus=self.cpus,
            modes=list(self.warmup.rungs), memory=memory(self.device),
            null_kernel_seconds=null_kernel_seconds(self.device) if warm else None, warm=warm,
        )  # fmt: skip


def assemble(settings: EngineSettings, announce: Callable[[ModeStatus], None]) -> Assembly:
    """Load the model and lay out everything else around it.

    Raises ValueError, with the remedy, for a device, dtype, core, checkpoint or tokenizer that cannot work.
    """
    device = choose_device(settings.device)
    precision = choose_precision(settings.dtype, device)
    cpus = engine_cpus(settings.cpus)
    torch.set_num_threads(settings.threads or len(cpus))
    largest = max(settings.batch_sizes)
    model = build(settings.model, largest, device, precision.weights)
    if model.config.context % settings.prefill_chunk:
        # The last chunk of a long prompt is padded, and padding must not be written behind the cache.
        raise ValueError(
            f"prefill_chunk {settings.prefill_chunk} does not divide the context of {model.config.context}: "
            "choose 32, 64 or 128"
        )
    twin = type(model)(model.config.hollow(), largest).eval().to(device, precision.weights)
    for either in (model, twin):
        either.rotary = either.rotary.to(precision.cache)
    buffers = allocate(model, settings.batch_sizes, settings.prefill_chunk, precision.cache)
    ends = sorted({min(settings.batch_sizes), largest})
    twin_buffers = allocate(twin, ends, 1, precision.cache)
    calibration = Calibration(model)
    # The seeded sizes have no tokenizer of their own and use that of `tiny`.
    tokenizer = Tokenizer.load(folder_of(settings.model) or TINY_FOLDER, model.config.vocabulary)
    build_one = partial(build_step, precision=precision)
    warmup = Warmup(settings.modes, model, twin, buffers, twin_buffers, calibration, announce, build_one)
    return Assembly(settings, device, precision, cpus, model, tokenizer, buffers, calibration, warmup)
