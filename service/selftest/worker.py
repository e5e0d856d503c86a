"""The worker process: runs checks on the engine's cores and writes events, as JSON lines, to its parent.

Started as `python -m service.selftest.worker SETTINGS NAMES`: `EngineSettings` as JSON, names with commas.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

import msgspec
import torch

from service.measure.rounds import Log
from service.measure.variants import Variants
from service.protocol.messages import EngineSettings
from service.selftest.asked_work import ASKED_WORK
from service.selftest.check import AnyCheck, run_check
from service.selftest.cuda import CUDA
from service.selftest.events import (
    CheckFinished,
    CheckProgress,
    MachineFacts,
    WorkerEvent,
)
from service.selftest.injected_work import INJECTED
from service.selftest.instructions import INSTRUCTIONS
from service.selftest.minimal_loop import MINIMAL_LOOP
from service.selftest.own_work import OWN_WORK
from service.selftest.plain_kernels import PLAIN_KERNELS
from service.selftest.request_path import INSTRUMENTATION
from service.selftest.sampling_rate import BACKGROUND, SAMPLING_RATE
from service.selftest.unclassified import UNCLASSIFIED
from service.step.device import device_name
from service.step.precision import choose_precision
from service.step.process_state import prepare_process

CHECKS: dict[str, AnyCheck] = {
    "injected": INJECTED, "sampling-rate": SAMPLING_RATE, "plain-kernels": PLAIN_KERNELS,
    "unclassified": UNCLASSIFIED, "instructions": INSTRUCTIONS, "background": BACKGROUND,
    "asked-work": ASKED_WORK, "own-work": OWN_WORK, "instrumentation": INSTRUMENTATION,
    "minimal-loop": MINIMAL_LOOP, "cuda": CUDA,
}  # fmt: skip


class EventWriter:
    """Writes events to the parent, one JSON line each."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._encode = msgspec.json.Encoder().encode

    def write(self, event: WorkerEvent) -> None:
        """Write `event` and flush."""
        self._stream.write(self._encode(event) + b"\n")
        self._stream.flush()

    def log_of(self, name: str) -> Log:
        """Writes the progress of the check `name`."""
        return lambda text: self.write(CheckProgress(name=name, text=text))


@torch.no_grad()
def run(settings: EngineSettings, names: list[str], events: EventWriter) -> None:
    """Run the checks called `names`, in that order. Raises ValueError for settings that cannot work."""
    prepare_process(settings.cache_folder, settings.model)
    variants = Variants(settings)
    facts = machine_facts(variants.device, variants.precision.name, variants.linears.layout)
    events.write(MachineFacts(facts))
    for name in names:
        log = events.log_of(name)
        log("begins")
        rows = run_check(name, CHECKS[name], variants, log, variants.off_cpu)
        events.write(CheckFinished(name, rows))


def machine_facts(device: torch.device, precision: str, linears: str) -> dict[str, str | int]:
    """Processor, device, torch, threads, precision, the device's default one, layout of linear weights."""
    return {
        "cpu": device_name(torch.device("cpu")),
        "device": device_name(device),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "dtype": precision,
        "default_dtype": choose_precision(None, device).name,
        "linears": linears,
    }


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 2 for settings that cannot work."""
    # What libraries print goes to standard error; standard output is for events alone.
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    settings = msgspec.json.decode(arguments[0], type=EngineSettings)
    try:
        run(settings, arguments[1].split(","), EventWriter(events))
    except ValueError as error:
        print(f"launchbound selftest: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
