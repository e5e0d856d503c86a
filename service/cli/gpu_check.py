"""`make gpu-check`: the CUDA path in one command of about three minutes, with a short table last.

Parity of every mode in bfloat16 and float32, one graph launch per `reduce-overhead` decode step, and the
modes side by side at batches 1, 8 and 32. Results go to `$OUT` if that is set, else to `results/`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, strftime
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table

from service.engine.local_inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.protocol.messages import EngineSettings, Job, Outcome, ToFront
from service.protocol.modes import default_modes
from service.protocol.status import ModeStatus
from service.protocol.timings import PhaseTimings
from service.statistics.intervals import paired_ratio
from service.step.process_state import prepare_process
from service.step.profiling import profile_step

BATCHES = [1, 8, 32]
ROUNDS = 8
NEW_TOKENS = 64
PROMPT = "def mean(values):\n"


def jobs() -> Iterable[Job]:
    """Rounds over all cells in fresh order, and one profiled job per cell at the end."""
    cells = [(mode, batch) for mode in default_modes() for batch in BATCHES]
    for number in range(ROUNDS + 1):
        Random(number).shuffle(cells)
        for mode, batch in cells:
            identity = f"{mode}-{batch}-{number}"
            yield local_job(
                identity, mode, [PROMPT] * batch, NEW_TOKENS, ignore_eos=True, profile=number == ROUNDS
            )


def run_engine(dtype: str, batches: list[int], work: Iterable[Job], cache: str) -> tuple[Engine, LocalInbox]:
    """Warm all modes up in `dtype` and run `work`; prints each mode as it becomes ready."""
    began = perf_counter()

    def watch(message: ToFront) -> None:
        if isinstance(message, ModeStatus) and message.state != "cold":
            print(f"{perf_counter() - began:6.1f} s  {dtype} {message.mode}: {message.state}", flush=True)

    settings = EngineSettings(
        address="",
        device="cuda",
        dtype=dtype,
        modes=default_modes(),
        batch_sizes=batches,
        cache_folder=cache,
    )
    torch.compiler.set_stance("default")
    inbox = LocalInbox(work, watch)
    engine = Engine(settings, inbox)
    engine.run()
    return engine, inbox


def graph_launches(engine: Engine) -> dict[int, float | None]:
    """CUDA-graph launches per `reduce-overhead` decode step, by batch."""
    torch.compiler.set_stance("default")
    steps = engine.parts.warmup.modes["reduce-overhead"].steps
    if not steps:
        return {}
    with torch.no_grad():
        return {
            batch: profile_step(steps["decode", batch], buffers).graph_launches
            for batch, buffers in engine.parts.buffers.items()
        }


def cell_rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Per mode and batch: medians per decode step in microseconds, and the speed-up against eager."""
    clean = [o for o in outcomes if o.timings and o.kind == "ok" and o.profile is None]
    rows = []
    for mode in default_modes():
        for batch in BATCHES:
            mine = [_decode(o) for o in clean if o.mode == mode and o.batch_size == batch]
            eager = [_decode(o) for o in clean if o.mode == "eager" and o.batch_size == batch]
            if not mine or len(mine) != len(eager):
                continue
            ratio = paired_ratio([_per_step(p) for p in eager], [_per_step(p) for p in mine])
            profiled = [o.profile for o in outcomes if o.profile and (o.mode, o.batch_size) == (mode, batch)]
            decode = next((p for p in profiled[0] if p.phase == "decode"), None) if profiled else None
            rows.append(
                {
                    "mode": mode,
                    "batch": batch,
                    "rounds": len(mine),
                    "step_us": median(_per_step(p) for p in mine) * 1e6,
                    "dispatch_us": median((p.dispatch_seconds or 0) / p.steps for p in mine) * 1e6,
                    "span_us": median((p.device_span_seconds or 0) / p.steps for p in mine) * 1e6,
                    "kernel_us": decode and decode.kernel_seconds and decode.kernel_seconds * 1e6,
                    "kernels": decode and decode.kernels,
                    "launches": decode and decode.launches,
                    "speedup": ratio.value,
                    "low": ratio.low,
                    "high": ratio.high,
                }
            )
    return rows


def _decode(outcome: Outcome) -> PhaseTimings:
    assert outcome.timings is not None
    return outcome.timings.decode


def _per_step(phase: PhaseTimings) -> float:
    return (phase.wall_seconds or 0.0) / phase.steps


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    """The five-mode table."""
    table = Table("mode", "batch", "step µs", "dispatch", "span", "kernel", "kernels", "launches", "× eager")
    for row in rows:
        numbers = (
            row["step_us"],
            row["dispatch_us"],
            row["span_us"],
            row["kernel_us"],
            row["kernels"],
            row["launches"],
        )
        shown = ["–" if number is None else f"{number:.0f}" for number in numbers]
        table.add_row(
            row["mode"],
            str(row["batch"]),
            *shown,
            f"{row['speedup']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
        )
    console.print(table)


def result_of(engine: Engine, boxes: dict[str, LocalInbox]) -> dict[str, Any]:
    """The content of `gpu-check.json`."""
    outcomes = boxes["bfloat16"].outcomes
    statuses = {f"{dtype} {name}": s for dtype, box in boxes.items() for name, s in box.modes.items()}
    return {
        "format_version": 1,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(),
        "created": strftime("%Y-%m-%dT%H:%M:%S"),
        "modes": {name: msgspec.to_builtins(status) for name, status in statuses.items()},
        "graph_launches": graph_launches(engine),
        "rows": cell_rows(outcomes),
        "problems": [outcome.problem.message for outcome in outcomes if outcome.problem],
        "null_kernel_seconds": engine.parts.status(warm=True).null_kernel_seconds,
    }


def conclude(result: dict[str, Any], console: Console) -> int:
    """Print the table and the failures; 0 if parity and graph launches are as expected, 1 otherwise."""
    show(console, result["rows"])
    bad = {name: s for name, s in result["modes"].items() if s["state"] != "ready"}
    for name, status in bad.items():
        console.print(f"{name}: {status['state']}: {status['detail']}")
    launches, problems = result["graph_launches"], result["problems"]
    console.print(f"parity: {len(result['modes']) - len(bad)} of {len(result['modes'])} modes")
    console.print(f"graph launches per reduce-overhead decode step, by batch: {launches}")
    console.print(f"problems: {problems[:3] or 'none'}")
    one_each = bool(launches) and all(count == 1 for count in launches.values())
    return 0 if not bad and one_each and not problems else 1


def main() -> int:
    """Check, write and print."""
    if not torch.cuda.is_available():
        print("gpu-check: torch sees no CUDA device, so nothing can be checked here", file=sys.stderr)
        return 1
    out = Path(os.environ.get("OUT") or f"results/gpu-check-{strftime('%Y%m%dT%H%M%S')}")
    out.mkdir(parents=True, exist_ok=True)
    cache = os.environ.get("LAUNCHBOUND_CACHE_FOLDER") or tempfile.mkdtemp(prefix="launchbound-")
    prepare_process(cache)
    _, exact = run_engine("float32", [8], [], cache)
    engine, inbox = run_engine("bfloat16", BATCHES, jobs(), cache)
    result = result_of(engine, {"float32": exact, "bfloat16": inbox})
    (out / "gpu-check.json").write_text(json.dumps(result, indent=1))
    (out / "outcomes.jsonl").write_bytes(b"\n".join(msgspec.json.encode(o) for o in inbox.outcomes))
    exit_code = conclude(result, Console(width=120))
    print(f"results in {out}")
    return exit_code


if __name__ == "__main__":
    raise SystemExit(main())
