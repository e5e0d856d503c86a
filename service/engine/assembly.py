"""Builds what one engine life consists of: model, twin, buffers, modes, and what they say of themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from models.checkpoint import TINY_FOLDER, build, content_hash, folder_of
from models.tokenizer import Tokenizer
from models.transformer import Transformer
from service.border.messages import EngineSettings, EngineStatus, ModeStatus
from service.engine.device import choose_device, choose_dtype, device_name, memory
from service.engine.placement import engine_cpus
from service.engine.warmup import Warmup
from service.step.calibration import Calibration
from service.step.callables import Buffers, allocate


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of an engine; built once, before anything is compiled."""

    settings: EngineSettings
    device: torch.device
    dtype: torch.dtype
    cpus: list[int]
    model: Transformer
    tokenizer: Tokenizer
    buffers: dict[int, Buffers]
    calibration: Calibration
    warmup: Warmup

    def status(self, warm: bool) -> EngineStatus:
        """What the front is told of this engine and its machine."""
        config, settings = self.model.config, self.settings
        return EngineStatus(
            pid=os.getpid(), model=settings.model, model_hash=content_hash(settings.model),
            parameters=sum(p.numel() for p in self.model.parameters()),
            layers=config.layers, width=config.width, context=config.context,
            prefill_chunk=settings.prefill_chunk, batch_buckets=sorted(self.buffers),
            device=self.device.type, device_name=device_name(self.device),
            dtype=str(self.dtype).removeprefix("torch."), torch=str(torch.__version__),
            cuda=torch.version.cuda, threads=torch.get_num_threads(), cpus=self.cpus,
            modes=list(self.warmup.rungs), memory=memory(self.device), warm=warm,
        )  # fmt: skip


def assemble(settings: EngineSettings, announce: Callable[[ModeStatus], None]) -> Assembly:
    """Load the model and lay out everything else around it.

    Raises ValueError, with the remedy, for a device, dtype, core, checkpoint or tokenizer that cannot work.
    """
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    cpus = engine_cpus(settings.cpus)
    torch.set_num_threads(settings.threads or len(cpus))
    largest = max(settings.batch_sizes)
    model = build(settings.model, largest, device, dtype)
    if settings.prefill_chunk > model.config.context:
        raise ValueError(
            f"prefill_chunk {settings.prefill_chunk} is longer than the context of {model.config.context}"
        )
    twin = type(model)(model.config.hollow(), largest).eval().to(device, dtype)
    buffers = allocate(model, settings.batch_sizes, settings.prefill_chunk)
    twin_buffers = allocate(twin, sorted({min(settings.batch_sizes), largest}), prefill_chunk=1)
    calibration = Calibration(model)
    # The seeded sizes have no tokenizer of their own and use that of `tiny`.
    tokenizer = Tokenizer.load(folder_of(settings.model) or TINY_FOLDER, model.config.vocabulary)
    warmup = Warmup(settings.modes, model, twin, buffers, twin_buffers, calibration, announce)
    return Assembly(settings, device, dtype, cpus, model, tokenizer, buffers, calibration, warmup)
