"""Sections `ladder` and `float32`: parity, in bfloat16 also speed, of the default modes and `cuda-graph`.

What is known by mode and batch is made of the rows of its jobs (`cells`), so that no ending of it loses any.
Run as `python -m service.gpu_check.sections.ladder DTYPE`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from random import Random

import msgspec

from service.engine.local_inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.gpu_check.cells import PROFILED_ROUND
from service.gpu_check.rows import Rows, own_rows
from service.protocol.messages import EngineSettings, Job, Outcome, ToFront
from service.protocol.modes import default_modes, named_modes
from service.protocol.status import ModeStatus
from service.step.process_state import prepare_process

BATCHES = [1, 8]
ROUNDS = 8
NEW_TOKENS = 64
PROMPT = "def mean(values):\n"
CAPTURED = "cuda-graph"


def modes() -> list[str]:
    """The default ones, and the captured rung: with it fusion and launches are told apart."""
    return named_modes([*default_modes(), CAPTURED])


def main(rows: Rows, dtype: str) -> None:
    """Warm the modes up in `dtype`; in bfloat16 run jobs as well. A row per job, and per change of a mode."""
    cache = os.environ["LAUNCHBOUND_CACHE_FOLDER"]
    prepare_process(cache)
    timed = dtype == "bfloat16"
    settings = EngineSettings(
        address="",
        device="cuda",
        dtype=dtype,
        modes=modes(),
        batch_sizes=BATCHES if timed else [BATCHES[1]],
        cache_folder=cache,
    )
    work = list(jobs()) if timed else []
    rows.write("plan", modes=settings.modes, batches=settings.batch_sizes, jobs=len(work))
    inbox = LocalInbox(work, lambda message: _watch(rows, message))
    Engine(settings, inbox).run()


def jobs() -> Iterable[Job]:
    """Rounds over all cells in fresh order, the first of them profiled: it tells what the modes launch."""
    cells = [(mode, batch) for mode in modes() for batch in BATCHES]
    for number in range(ROUNDS + 1):
        Random(number).shuffle(cells)
        for mode, batch in cells:
            identity = f"{mode}-{batch}-{number}"
            yield local_job(
                identity,
                mode,
                [PROMPT] * batch,
                NEW_TOKENS,
                ignore_eos=True,
                profile=number == PROFILED_ROUND,
            )


def _watch(rows: Rows, message: ToFront) -> None:
    """A row for a mode's every change, and for every job."""
    if isinstance(message, ModeStatus) and message.state != "cold":
        rows.write("mode", **msgspec.to_builtins(message))
    elif isinstance(message, Outcome):
        fields = msgspec.to_builtins(msgspec.structs.replace(message, outputs=[]))
        rows.write("job", outcome=fields.pop("kind"), **fields)


if __name__ == "__main__":
    main(own_rows(), sys.argv[1])
