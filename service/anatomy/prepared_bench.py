"""A bench in a process of its own that has been prepared as an engine's, and what machine it is on."""

from __future__ import annotations

import os

import msgspec
import torch

from service.anatomy.common import StudyError
from service.machine import pin
from service.measure.cases import Bench
from service.records import EngineSettings
from service.step.device import choose_device, device_name
from service.step.process_state import prepare_process

_VENDORS = frozenset({"amd", "intel", "nvidia", "arm", "unknown", "cpu"})


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where findings were measured: `cores` of the machine, of which the bench has `threads` at work."""

    name: str
    device: str
    cores: int
    threads: int
    torch: str
    dtype: str
    model: str

    def __str__(self) -> str:
        return (
            f"{self.name}, {self.cores} cores, torch {self.torch}; model {self.model}, {self.dtype}, "
            f"{self.threads} thread(s), device {self.device}"
        )


def prepare_bench(settings: EngineSettings) -> Bench:
    """Prepare this process and load the model. Raises StudyError for settings that cannot work."""
    try:
        prepare_process(settings.cache_folder, settings.model)
        bench = Bench(settings)
    except ValueError as error:
        raise StudyError("invalid_request", str(error)) from error
    # The engine's cores, so that both measure the same ones: it is paused meanwhile or not there.
    pin(bench.cpus)
    return bench


def machine_label(device: str) -> str:
    """A short name of this machine: the kind of its processor or GPU, and its cores ('epyc2')."""
    name = device_name(choose_device(device)).lower().replace("(r)", "").replace("(tm)", "").partition("(")[0]
    kinds = [word for word in name.split() if word.isalnum() and word not in _VENDORS]
    return f"{kinds[0] if kinds else 'machine'}{os.cpu_count() or 1}"


def machine_of(bench: Bench) -> Machine:
    """The machine of `bench`. Its model is named without the folder that it is in."""
    return Machine(
        name=device_name(bench.device),
        device=bench.device.type,
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        dtype=bench.precision.name,
        model=bench.settings.model.rstrip("/").rpartition("/")[2],
    )
