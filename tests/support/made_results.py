"""Results folders with a known answer, made without any service, for tests of what is read from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from random import Random

from loadtests.plan.cells import Cell, Plan, order
from loadtests.plan.presets import make_plan
from loadtests.run.rows import RowWriter, each_row
from loadtests.run.run_file import Client, SweepRun, write_run
from loadtests.run.schedule import Latencies, rounds
from loadtests.run.target import SCRAPES_FOLDER
from loadtests.run.validation import validate_folder, write_validation
from service.modes import AUTO
from service.records import METHOD
from tests.support.fake_service import STEP_SECONDS, auto_status, engine_status, mode_status, timings

CLEAR = {"eager": 1.0, "no_grad": 0.8, "inference_mode": 0.7, "compiled": 0.4, "reduce-overhead": 0.6}
"""Relative latency of each mode: `compiled` wins everywhere."""

ALIKE = dict.fromkeys(CLEAR, 1.0)


HERE = {"cpu": "a CPU", "cores": 2, "commit": "0123456789ab", "dirty": False, "method": METHOD}
"""What the service says of itself."""


def make_results(
    folder: Path,
    relative: Mapping[str, float] = CLEAR,
    *,
    plan: Plan | None = None,
    scatter: float = 0.01,
    device: str = "cpu",
    fail: int = 0,
    switches: int = 0,
    complete: bool = True,
    seed: int = 11,
    started: str = "2026-01-01T00:00:00Z",
    auto_runs: str = "compiled",
) -> Path:
    """Write a sweep whose modes take 20 ms × batch × `relative`, with `scatter` per request and per round.

    The first `fail` measured requests failed; every request saw so many involuntary `switches`. `auto` runs
    the mode `auto_runs`, and takes what that does.
    """
    plan, random, now, sequence = plan or make_plan("quick", 1), Random(seed), 1_700_000_000.0, 0
    orders = []
    latencies = Latencies()
    visits = chain([(0, order(plan, 0))], rounds(plan, latencies, lambda _: None))
    with RowWriter(folder) as rows:
        for number, cells in visits:
            drift = random.gauss(0, scatter)
            orders.append([cell.name for cell in cells])
            for cell in cells:
                for _ in range(cell.requests if number else 1):
                    factor = math.exp(random.gauss(drift, scatter)) * (1 if number else 3)
                    failed = bool(number) and fail > 0
                    fail -= failed
                    ran = auto_runs if cell.mode == AUTO else cell.mode
                    seconds = 0.02 * cell.batch_size * relative[ran] * factor
                    rows.write(_row(cell, ran, number, sequence, now, seconds, failed, device, switches))
                    if number and not failed:
                        latencies.add(cell.name, number, seconds)
                    now, sequence = now + seconds, sequence + 1
    engine = engine_status() | {"device": device}
    run = SweepRun(
        method=METHOD,
        run="a-run",
        url="http://127.0.0.1:1",
        plan=plan,
        seed=plan.seed,
        started=started,
        ended=started,
        complete=complete,
        stopped_because=None if complete else "interrupted",
        order=orders[1:],
        environment=HERE,
        engine=engine,
        auto=auto_status(auto_runs) if AUTO in plan.modes else None,
        modes=[mode_status(mode, "ready") for mode in STEP_SECONDS],
        client=Client(cpus=[0], cpu_share=0.05, warmup_passes=2, warmup_settled=True, warmup_reason="flat"),
        settings={"model": "tiny"},
    )
    write_run(folder, run)
    (folder / SCRAPES_FOLDER).mkdir()
    (folder / SCRAPES_FOLDER / "before.prom").write_text(scrape_text({}))
    (folder / SCRAPES_FOLDER / "after.prom").write_text(scrape_text(_counts(folder)))
    write_validation(folder, validate_folder(folder, run))
    return folder


def _row(
    cell: Cell,
    ran: str,
    number: int,
    sequence: int,
    now: float,
    seconds: float,
    failed: bool,
    device: str,
    switches: int,
) -> dict[str, object]:
    tokens = cell.new_tokens
    measured = timings(ran, cell.batch_size, tokens) | {"involuntary_switches": switches}
    if device == "cuda":
        measured |= {
            "kernel_seconds": None,
            "sync_wait_seconds": 0.001,
            "sources": {"dispatch": "measured", "kernel": None},
        }
        for phase in ("prefill", "decode"):
            measured[phase] |= {"kernel_seconds": None, "sync_wait_seconds": 0.0005}
    fields: dict[str, object] = {
        "run": "a-run",
        "cell": cell.name,
        "control": cell.control,
        "round": number,
        "sequence": sequence,
        "stage": "measure" if number else "warmup",
        "mode": cell.mode,
        "effective_mode": "compiled-cpp" if ran == "reduce-overhead" else ran,
        "batch_size": cell.batch_size,
        "prompt_set": cell.prompt_set,
        "new_tokens": tokens,
        "concurrency": cell.concurrency,
        "load": cell.load,
        "rate": cell.rate,
        "request_id": str(sequence),
        "intended_start": now,
        "start": now,
        "latency_seconds": seconds,
        "latency_from_intended_seconds": seconds,
        "status": 500 if failed else 200,
        "error": "the engine broke" if failed else None,
    }
    if failed:
        return fields
    if cell.mode == AUTO:
        fields["picked_mode"] = ran
    return fields | {"prompt_tokens": 6, "completion_tokens": tokens * cell.batch_size} | measured


def _counts(folder: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in each_row(folder):
        counts[row.ran_mode] = counts.get(row.ran_mode, 0) + 1
    return counts


def scrape_text(counts: Mapping[str, int]) -> str:
    """A scrape of /metrics after so many requests by mode."""
    lines = [
        f'launchbound_requests_total{{mode="{m}",outcome="ok"}} {counts.get(m, 0)}'
        for m in dict.fromkeys([*STEP_SECONDS, *counts])
    ]
    return "\n".join(["# TYPE launchbound_requests_total counter", *lines]) + "\n"
