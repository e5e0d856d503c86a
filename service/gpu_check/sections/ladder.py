"""Sections `ladder` and `float32`: parity, in bfloat16 also speed, of the default modes and `cuda-graph`.

Run as `python -m service.gpu_check.sections.ladder DTYPE`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from random import Random
from statistics import median
from typing import Any

import msgspec
import torch

from service.engine.local_inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.gpu_check.rows import Rows, own_rows
from service.protocol.messages import EngineSettings, Job, Outcome, ToFront
from service.protocol.modes import default_modes, named_modes
from service.protocol.status import ModeStatus
from service.protocol.timings import PhaseTimings
from service.statistics.intervals import paired_ratio
from service.step.buffers import prepare
from service.step.process_state import prepare_process
from service.step.profiling import profile_step

BATCHES = [1, 8, 32]
ROUNDS = 8
NEW_TOKENS = 64
PROMPT = "def mean(values):\n"
GRAPHS = "reduce-overhead"
CAPTURED = "cuda-graph"


def modes() -> list[str]:
    """The default ones, and the captured rung: with it fusion and launches are told apart."""
    return named_modes([*default_modes(), CAPTURED])


def main(rows: Rows, dtype: str) -> None:
    """Warm the modes up in `dtype`; in bfloat16 run jobs as well. A row per mode, job and cell."""
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
    engine = Engine(settings, inbox)
    engine.run()
    if timed:
        for row in cell_rows(inbox.outcomes):
            rows.write("cell", **row)
        for batch, launches in graph_launches(engine).items():
            rows.write("graph_launches", batch=batch, per_step=launches)


def jobs() -> Iterable[Job]:
    """Rounds over all cells in fresh order, and one profiled job per cell at the end."""
    cells = [(mode, batch) for mode in modes() for batch in BATCHES]
    for number in range(ROUNDS + 1):
        Random(number).shuffle(cells)
        for mode, batch in cells:
            identity = f"{mode}-{batch}-{number}"
            yield local_job(
                identity, mode, [PROMPT] * batch, NEW_TOKENS, ignore_eos=True, profile=number == ROUNDS
            )


def _watch(rows: Rows, message: ToFront) -> None:
    """A row for a mode's every change, and for every job."""
    if isinstance(message, ModeStatus) and message.state != "cold":
        rows.write("mode", **msgspec.to_builtins(message))
    elif isinstance(message, Outcome):
        fields = msgspec.to_builtins(msgspec.structs.replace(message, outputs=[]))
        rows.write("job", outcome=fields.pop("kind"), **fields)


def graph_launches(engine: Engine) -> dict[int, float | None]:
    """CUDA-graph launches per `reduce-overhead` decode step, by batch; empty where that mode failed."""
    torch.compiler.set_stance("default")
    steps = engine.parts.warmup.modes[GRAPHS].steps
    if not steps:
        return {}
    found: dict[int, float | None] = {}
    with torch.no_grad():
        for batch, buffers in engine.parts.buffers.items():
            prepare(buffers)  # a job has left positions beyond the least reach
            found[batch] = profile_step(steps["decode", batch], buffers).graph_launches
    return found


def cell_rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Per mode and batch: medians per decode step in seconds, and the speed-up against eager."""
    clean = [o for o in outcomes if o.timings and o.kind == "ok" and o.profile is None]
    rows = []
    for mode in modes():
        for batch in BATCHES:
            own = [o for o in clean if o.mode == mode and o.batch_size == batch]
            mine = [_decode(o) for o in own]
            eager = [_decode(o) for o in clean if o.mode == "eager" and o.batch_size == batch]
            if not mine or len(mine) != len(eager):
                continue
            names = {"mode": mode, "effective": own[-1].effective, "batch": batch}
            rows.append({**names, **_timed(mine, eager), **_profiled(outcomes, mode, batch)})
    return rows


def _timed(mine: list[PhaseTimings], eager: list[PhaseTimings]) -> dict[str, Any]:
    ratio = paired_ratio([_per_step(p) for p in eager], [_per_step(p) for p in mine])
    spans = [p.device_span_seconds / p.steps for p in mine if p.device_span_seconds is not None]
    hosts = [p.dispatch_seconds / p.steps for p in mine if p.dispatch_seconds is not None]
    return {
        "rounds": len(mine),
        "step_seconds": median(_per_step(p) for p in mine),
        "dispatch_seconds": median(hosts) if hosts else None,
        "span_seconds": median(spans) if spans else None,
        "speedup": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
    }


def _profiled(outcomes: list[Outcome], mode: str, batch: int) -> dict[str, Any]:
    """Of the cell's profiled job, per decode step; None: not profiled, or the profiler saw nothing."""
    profiles = [o.profile for o in outcomes if o.profile and (o.mode, o.batch_size) == (mode, batch)]
    decode = next((p for p in profiles[0] if p.phase == "decode"), None) if profiles else None
    names = ("kernel_seconds", "kernels", "launches", "graph_launches")
    return {name: getattr(decode, name, None) for name in names}


def _decode(outcome: Outcome) -> PhaseTimings:
    assert outcome.timings is not None
    return outcome.timings.decode


def _per_step(phase: PhaseTimings) -> float:
    """The period: with what the engine does between two steps, which dispatch and wait leave out."""
    return (phase.period_seconds or 0.0) / phase.steps


if __name__ == "__main__":
    main(own_rows(), sys.argv[1])
