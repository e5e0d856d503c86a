"""The bench's process: runs checks on the engine's cores and tells rows, as JSON lines, to its parent.

Started as `python -m service.selftest.worker SETTINGS NAMES`: `EngineSettings` as JSON, names with commas.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

import msgspec
import torch

from service.measure.rounds import Say
from service.measure.variants import Lab
from service.protocol.messages import EngineSettings
from service.selftest.checks import ENGINE_REST, settle
from service.selftest.cross_check_perf import sampled
from service.selftest.cross_check_widths import work
from service.selftest.cuda import on_cuda
from service.selftest.engine_overhead import engine_seconds
from service.selftest.events import BenchEvent, CheckResults, EngineRest, Machine, Said
from service.selftest.floors import ladder, widths
from service.selftest.injected_work import added_host_work, longer_kernel
from service.selftest.instrumentation import full_against_off, own_work
from service.selftest.machine import described
from service.selftest.results import CheckResult
from service.step.process_state import prepare_process

CHECKS: dict[str, Callable[[Lab, Say], list[CheckResult]]] = {
    "ladder": ladder, "widths": widths, "intercept": work, "perf": sampled, "kernel": longer_kernel,
    "host": added_host_work, "own-work": own_work, "instrumentation": full_against_off, "cuda": on_cuda,
}  # fmt: skip


class Teller:
    """Writes events to the parent, one JSON line each."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._encode = stream, msgspec.json.Encoder().encode

    def tell(self, event: BenchEvent) -> None:
        """Write `event` at once."""
        self._stream.write(self._encode(event) + b"\n")
        self._stream.flush()

    def say_for(self, name: str) -> Say:
        """What a check calls to say how far it is."""
        return lambda text: self.tell(Said(name=name, text=text))


@torch.no_grad()
def run(settings: EngineSettings, names: list[str], teller: Teller) -> None:
    """Run the checks called `names`, in that order. Raises ValueError for settings that cannot work."""
    prepare_process(settings.cache_folder)
    lab = Lab(settings)
    teller.tell(Machine(described=described(lab.device, lab.precision.name)))
    for name in names:
        say = teller.say_for(name)
        say("begins")
        if name == ENGINE_REST:
            teller.tell(EngineRest(seconds=engine_seconds(lab, say)))
            continue
        teller.tell(
            CheckResults(name=name, rows=settle(name, partial(CHECKS[name], lab, say), lab.disturbance))
        )


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 2 for settings that cannot work."""
    # Whatever a library prints goes to standard error; standard output is for events alone.
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    settings = msgspec.json.decode(arguments[0], type=EngineSettings)
    try:
        run(settings, arguments[1].split(","), Teller(events))
    except ValueError as error:
        print(f"launchbound selftest: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
