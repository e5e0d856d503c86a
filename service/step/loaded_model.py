"""The served model as every process loads it: on its device, in its precision, linear weights laid out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from models.opening import content_hash, open_model
from models.served import Served
from service.protocol.messages import EngineSettings
from service.protocol.placement import engine_cpus, physical_cores
from service.protocol.status import LinearLayout
from service.step.device import choose_device, device_name
from service.step.linear_layout import apply_layout
from service.step.precision import Precision, choose_precision


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`model` and what it was loaded with; it has `parameters` weights, tied ones counted once."""

    device: torch.device
    precision: Precision
    cpus: list[int]
    model: Served
    parameters: int
    linears: LinearLayout


def load_model(settings: EngineSettings) -> LoadedModel:
    """Load the model of `settings`, and set the number of threads of this process.

    Raises ValueError, with the remedy, for a device, dtype, core or checkpoint that cannot work.
    """
    device = choose_device(settings.device)
    precision = choose_precision(settings.dtype, device)
    cpus = engine_cpus(settings.cpus)
    threads = settings.threads or physical_cores(cpus)
    torch.set_num_threads(threads)
    model = open_model(
        settings.model,
        max(settings.batch_sizes),
        device,
        precision.weights,
        precision.cache,
        settings.context,
        settings.prefill_chunk,
    )
    parameters = sum(p.numel() for p in model.parameters())
    key = f"{content_hash(settings.model)} {precision.name} {threads} {device_name(device)}"
    linears = apply_layout(
        model,
        settings.linears,
        settings.cache_folder,
        key,
        casts=precision.autocast is not None,
    )
    return LoadedModel(device, precision, cpus, model, parameters, linears)
