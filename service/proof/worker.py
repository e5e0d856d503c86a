"""The worker process: runs checks on the engine's cores and writes events, as JSON lines, to its parent.

Started as `python -m service.proof.worker SETTINGS NAMES`: `EngineSettings` as JSON, names with commas.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import msgspec
import torch

from service.measure.cases import Variants
from service.proof.classes import INJECTED, INSTRUCTIONS, UNCLASSIFIED
from service.proof.requests import INSTRUMENTATION, MINIMAL_LOOP
from service.proof.rows import AnyCheck, Event, run_check
from service.proof.split import BACKGROUND, CUDA, PLAIN_KERNELS, SAMPLING_RATE
from service.records import EngineSettings
from service.step.device import device_name
from service.step.loaded_model import choose_precision
from service.step.process_state import prepare_process

CHECKS: dict[str, AnyCheck] = {
    "injected": INJECTED, "sampling-rate": SAMPLING_RATE, "plain-kernels": PLAIN_KERNELS,
    "unclassified": UNCLASSIFIED, "instructions": INSTRUCTIONS, "background": BACKGROUND,
    "instrumentation": INSTRUMENTATION, "minimal-loop": MINIMAL_LOOP, "cuda": CUDA,
}  # fmt: skip


@torch.no_grad()
def run(settings: EngineSettings, names: list[str], write: Callable[[Event], None]) -> None:
    """Run the checks called `names`, in that order. Raises ValueError for settings that cannot work."""
    prepare_process(settings.cache_folder, settings.model)
    variants = Variants(settings)
    write(Event(facts=machine_facts(variants)))
    for name in names:

        def log(text: str, name: str = name) -> None:
            write(Event(name, text))

        log("begins")
        write(Event(name, rows=run_check(name, CHECKS[name], variants, log, variants.off_cpu)))


def machine_facts(variants: Variants) -> dict[str, str | int]:
    """The `facts` of an Event."""
    return {
        "cpu": device_name(torch.device("cpu")),
        "device": device_name(variants.device),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "dtype": variants.precision.name,
        "default_dtype": choose_precision(None, variants.device).name,
        "linears": variants.linears.layout,
    }


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 2 for settings that cannot work."""
    # What libraries print goes to standard error; standard output is for events alone.
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def write(event: Event) -> None:
        events.write(msgspec.json.encode(event) + b"\n")
        events.flush()

    try:
        run(msgspec.json.decode(arguments[0], type=EngineSettings), arguments[1].split(","), write)
    except ValueError as error:
        print(f"launchbound selftest: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
