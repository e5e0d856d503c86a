"""The worker process: runs checks on the engine's cores and writes events, as JSON lines, to its parent.

Started as `python -m service.proof.worker SETTINGS NAMES`: `EngineSettings` as JSON, names with commas.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import msgspec
import torch

from models.checkpoint import Checkpoint
from service.measure.cases import Bench
from service.proof import classes, split
from service.proof.rows import Check, Event, run_check
from service.records import EngineSettings
from service.step.device import device_name
from service.step.loaded_model import choose_precision
from service.step.process_state import prepare_process

CHECKS: dict[str, Check] = {
    "injected": Check(classes.measure_injected, classes.judge_injected, tuple(classes.ARRIVES.values())),
    "sampling-rate": Check(split.measure_rates, split.judge_rates, (split.SHIFT,)),
    "plain-kernels": Check(split.measure_plain, split.judge_plain, (split.EQUAL,)),
    "unclassified": Check(classes.measure_unclassified, classes.judge_unclassified, (classes.UNKNOWN,)),
    "instructions": Check(
        classes.measure_instructions,
        classes.judge_instructions,
        (classes.KERNELS, classes.HOST, classes.GROWTH),
    ),
    "background": Check(split.measure_background, split.judge_background, (split.COST,)),
    "instrumentation": Check(split.measure_instrumentation, split.judge_instrumentation, (split.MEASURING,)),
    "minimal-loop": Check(split.measure_minimal_loop, split.judge_minimal_loop),
    "cuda": Check(split.measure_cuda, split.judge_cuda, (split.KERNELS, split.GRAPHS)),
}
"""By name, in the order in which they run."""


@torch.no_grad()
def run(settings: EngineSettings, names: list[str], write: Callable[[Event], None]) -> None:
    """Run the checks called `names`, in that order. Raises ValueError for settings that cannot work."""
    # Raises for a model that is not ours: of another one no step has fewer layers.
    Checkpoint(settings.model).config  # noqa: B018 - it raises
    prepare_process(settings.cache_folder, settings.model)
    bench = Bench(msgspec.structs.replace(settings, batch_sizes=sorted({1, *settings.batch_sizes})))
    facts: dict[str, str | int] = {
        "cpu": device_name(torch.device("cpu")),
        "device": device_name(bench.device),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "dtype": bench.precision.name,
        "default_dtype": choose_precision(None, bench.device).name,
        "linears": bench.linears.layout,
    }
    write(Event(facts=facts))
    for name in names:

        def log(text: str, name: str = name) -> None:
            write(Event(name, text))

        log("begins")
        rows, runs = run_check(name, CHECKS[name], bench, log, bench.off_cpu)
        write(Event(name, rows=rows, runs=runs))


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
