"""Results folders with a known answer, made without any service, for tests of what is read from them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from loadtests.plan.cells import Cell, Plan, order
from loadtests.plan.plan_file import plan_of
from loadtests.plan.presets import overridden, preset_documents
from loadtests.run.gates import check_rows, write_validation
from loadtests.run.rows import ROWS_FILE, LineWriter, each_row
from loadtests.run.run_file import Client, CutBlock, RoundMachine, SweepRun, read_run, write_run
from loadtests.run.schedule import Latencies, rounds
from loadtests.run.series import begin_series, read_series
from loadtests.run.target import SCRAPES_FOLDER
from service.records import METHOD
from tests.support.fake_service import (
    AROUND_SECONDS,
    MODULE,
    STEP_SECONDS,
    engine_status,
    mode_status,
    timings,
    timings_of_calls,
)
from tests.support.made_plans import make_plan

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
) -> Path:
    """Write a sweep whose modes take 20 ms × batch × `relative`, with `scatter` per request and per round.

    Of a plan of calls these are the times of a call, and a request has AROUND_SECONDS around its calls. The
    first `fail` measured requests failed; every request saw so many involuntary `switches`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan, random, now, sequence = plan or make_plan("quick", 1), Random(seed), 1_700_000_000.0, 0
    orders = []
    latencies = Latencies()
    numbered = chain([(0, order(plan, 0))], rounds(plan, latencies, lambda _: None))
    with LineWriter(folder / ROWS_FILE) as rows:
        for number, cells in numbered:
            drift = random.gauss(0, scatter)
            orders.append([cell.name for cell in cells])
            for cell in cells:
                for index in range(cell.requests if number else 1):
                    factor = math.exp(random.gauss(drift, scatter)) * (1 if number else 3)
                    failed = bool(number) and fail > 0
                    fail -= failed
                    seconds = 0.02 * cell.batch_size * relative[cell.mode] * factor
                    row = _row(cell, number, now, seconds, failed, device, switches)
                    rows.write(row | {"index": index, "sequence": sequence, "request_id": str(sequence)})
                    if number and not failed:
                        latencies.add(cell.name, number, [seconds])
                    now, sequence = now + seconds, sequence + 1
    served = engine_status() | {"device": device} | (MODULE if plan.cells[0].calls else {})
    run = SweepRun(
        method=METHOD, run="a-run", url="http://127.0.0.1:1", plan=plan, seed=plan.seed, started=started,
        ended=started, complete=complete, stopped_because=None if complete else "interrupted",
        order=orders[1:], environment=HERE, engine=served,
        modes=[mode_status(mode, "ready") for mode in STEP_SECONDS],
        client=Client(cpus=[0], cpu_share=0.05, warmup_passes=2, warmup_settled=True, warmup_reason="flat"),
        settings={"model": "tiny"},
    )  # fmt: skip
    write_run(folder, run)
    (folder / SCRAPES_FOLDER).mkdir()
    (folder / SCRAPES_FOLDER / "before.prom").write_text(scrape_text({}))
    (folder / SCRAPES_FOLDER / "after.prom").write_text(
        scrape_text(Counter(row.mode for row in each_row(folder)))
    )
    write_validation(folder, check_rows(folder).gates_of(folder, run))
    return folder


def _row(
    cell: Cell, number: int, now: float, seconds: float, failed: bool, device: str, switches: int
) -> dict[str, object]:
    if cell.calls is None:
        tokens = cell.new_tokens or 0
        usage = {"prompt_tokens": 6, "completion_tokens": tokens * cell.batch_size}
        measured = usage | timings(cell.mode, cell.batch_size, tokens)
    else:
        measured = timings_of_calls(cell.mode, cell.batch_size, cell.calls)
        took = cell.calls * seconds
        parts = {"dispatch_seconds": 0.6 * took, "kernel_seconds": 0.4 * took}
        measured |= parts
        period = took if device == "cuda" else 1.1 * took
        measured["forward"] |= parts | {"wall_seconds": took, "period_seconds": period}
        seconds = took + AROUND_SECONDS
    measured |= {"involuntary_switches": switches}
    if device == "cuda":
        measured |= {"kernel_seconds": None, "sync_wait_seconds": 0.001}
        measured["sources"] = {"dispatch": "measured", "kernel": None}
        for phase in cell.workload.phases:
            own = measured[phase] | {"kernel_seconds": None, "sync_wait_seconds": 0.0005}
            if cell.calls is not None:
                own["wall_seconds"] = own["dispatch_seconds"] + own["sync_wait_seconds"]
            measured[phase] = own
    fields: dict[str, object] = {
        "run": "a-run", "cell": cell.name, "control": cell.control, "round": number,
        "stage": "measure" if number else "warmup", "mode": cell.mode,
        "effective_mode": "compiled-cpp" if cell.mode == "reduce-overhead" else cell.mode,
        **cell.work, "concurrency": cell.concurrency, "load": cell.load, "rate": cell.rate,
        "intended_start": now, "start": now, "latency_seconds": seconds,
        "latency_from_intended_seconds": seconds, "status": 500 if failed else 200,
        "error": "the engine broke" if failed else None,
    }  # fmt: skip
    if failed:
        return fields
    return fields | measured


def scrape_text(counts: Mapping[str, int]) -> str:
    """A scrape of /metrics after so many requests by mode."""
    lines = [
        f'launchbound_requests_total{{mode="{m}",outcome="ok"}} {counts.get(m, 0)}'
        for m in dict.fromkeys([*STEP_SECONDS, *counts])
    ]
    return "\n".join(["# TYPE launchbound_requests_total counter", *lines]) + "\n"


Row = dict[str, Any]
COMPILED = ("compiled", "reduce-overhead")
BATCHES = (1, 4, 16)


def make_module(folder: Path, calls: int = 4, **options: Any) -> Path:
    """A module's sweep by the preset quick, with `calls` at batch 1, a half at 4, a quarter at 16."""
    plan = make_plan("quick", 1).of_calls({1: calls, 4: calls // 2, 16: calls // 4})
    return make_results(folder, plan=plan, **options)


def edit_rows(folder: Path, change: Callable[[Row], None]) -> None:
    """Apply `change` to every row of `requests.jsonl` that has timings."""
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row.get("decode"):
            change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_series(folder: Path, speeds: Mapping[str, Sequence[Mapping[str, float]]]) -> Path:
    """A series of made-up sweeps at batch 1 and 4, by model one of each of its `speeds`."""
    plan = overridden(preset_documents("quick")[0], 7, ["eager", "inference_mode", "compiled"], [1, 4])
    documents = [msgspec.structs.replace(plan, model=model, starts=len(own)) for model, own in speeds.items()]
    begin_series(folder, documents, {}, workers=1)
    for name, document in read_series(folder).plans.items():
        relative = speeds[str(document.model)][document.seed - plan.seed]
        make_results(folder / name, relative, plan=plan_of(document), seed=document.seed)
        run = read_run(folder / name)
        run.engine["model"] = document.model
        write_run(folder / name, run)
    return folder


def edit_run(folder: Path, change: Callable[[SweepRun], None]) -> None:
    """Apply `change` to `run.json`."""
    run = read_run(folder)
    change(run)
    write_run(folder, run)


def set_split(row: Row, phase: str, index: float, reach: float) -> None:
    """Give a phase this device-bound index, and a dispatch interval that reaches so far to both sides."""
    wall = row[phase]["wall_seconds"]
    row[phase] |= {
        "dispatch_seconds": (1 - index) * wall,
        "kernel_seconds": index * wall,
        "dispatch_low_seconds": max(0.0, 1 - index - reach) * wall,
        "dispatch_high_seconds": min(1.0, 1 - index + reach) * wall,
    }


def with_intervals(folder: Path, reach: float = 0.05) -> Path:
    """Every phase's dispatch gets an interval of ± `reach` of the wall time, and its tokens are recorded."""

    def change(row: Row) -> None:
        for phase in ("prefill", "decode"):
            set_split(row, phase, row[phase]["kernel_seconds"] / row[phase]["wall_seconds"], reach)
        row |= {"padded_prompt_tokens": 16, "attended_tokens": 64}

    edit_rows(folder, change)
    return folder


def with_samples(
    folder: Path, split: Callable[[Row], tuple[int, int, int]] = lambda row: (60, 40, 0)
) -> Path:
    """Before each block of requests one was sampled: in both phases these samples were in kernels, in the
    host, in code of no class, and one in the system.
    """
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    written, seen = [], set()
    for row in rows:
        block = (row["round"], row["cell"])
        if row["stage"] == "measure" and block not in seen:
            seen.add(block)
            sampled = json.loads(json.dumps(row)) | {"stage": "sample", "latency_seconds": 99.0}
            for phase in ("prefill", "decode"):
                sampled[phase] = (sampled.get(phase) or {}) | samples_in(*split(row))
            written.append(sampled)
        written.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    return folder


def samples_in(kernel: int, host: int, unclassified: int, of: str = "request") -> Row:
    """The samples of a phase, as a response has them."""
    return {
        "kernel_samples": kernel, "host_samples": host, "system_samples": 1,
        "unclassified_samples": unclassified, "samples_of": of,
    }  # fmt: skip


def with_compilations(folder: Path, seconds: float = 0.6, cold_seconds: float | None = 12.0) -> Path:
    """Decode and prefill at every bucket, loaded from a warm cache in `seconds` each."""
    entry = {"seconds": seconds, "cold": False, "cold_seconds": cold_seconds}

    def change(run: SweepRun) -> None:
        for mode in run.modes:
            if mode["mode"] in COMPILED:
                mode["compilations"] = [
                    entry | {"phase": phase, "batch": batch}
                    for batch in BATCHES
                    for phase in ("prefill", "decode")
                ]

    edit_run(folder, change)
    return folder


def with_machine(folder: Path, rates: list[float | None], steal: list[float | None]) -> Path:
    """The machine by round: rates of reading memory in bytes per second, and shares of stolen time."""

    def change(run: SweepRun) -> None:
        run.machine_by_round = [
            RoundMachine(round=number, steal_share=share, canary_bytes_per_second=rate)
            for number, (rate, share) in enumerate(zip(rates, steal, strict=True), start=1)
        ]

    edit_run(folder, change)
    return folder


SERVICE = {"eager": 0.02, "inference_mode": 0.01}
"""Mean seconds in service: at most 50 and 100 requests per second."""

OUTSIDE_SECONDS = 0.0002
FIRST_TOKEN_SHARE = 0.25
"""Of a request's time in service, until its first token."""


def make_load(
    folder: Path,
    rates: Sequence[float],
    *,
    requests: int = 100,
    rounds: int = 8,
    most_waiting: int = 64,
    cut: Sequence[tuple[int, str]] = (),
) -> Path:
    """A sweep of the preset quick at batch 1, with each of `rates` for every mode of `SERVICE`.

    Requests come as of many clients, and are answered in turn. The blocks `cut`, by round and mode, end after
    half of their requests, at the highest rate.
    """
    plan = make_plan("quick", 1, modes=list(SERVICE), batch_sizes=[1])
    cells = {
        cell.name: cell
        for rate in rates
        for mode in SERVICE
        for cell in [Cell(mode=mode, batch_size=1, rate=rate, requests=requests)]
    }
    loaded = (*plan.cells, *cells.values())
    make_results(folder, plan=msgspec.structs.replace(plan, rounds=rounds, rounds_most=None, cells=loaded))
    reason = "its queue only grew"
    last = {cell.mode: cell.name for cell in cells.values() if cell.rate == rates[-1]}
    ended = [(number, last[mode]) for number, mode in cut]
    blocks = [CutBlock(round=number, cell=name, sent=requests // 2, reason=reason) for number, name in ended]
    path, random, written = folder / "requests.jsonl", Random(3), list[Row]()
    due, free, begins = 0.0, 0.0, list[float]()
    for row in map(json.loads, path.read_text().splitlines()):
        cell = cells.get(row["cell"])
        if cell is not None and row["stage"] == "measure":
            due += random.expovariate(cell.rate or 0.0)
            if not row["index"]:
                due, free, begins = 0.0, 0.0, []
            at = 1_700_000_000.0 + 1000.0 * row["round"] + due
            row |= {"intended_start": at, "start": at}
            service = SERVICE[cell.mode] * random.lognormvariate(-0.011, 0.15)
            if len(begins) >= most_waiting and begins[-most_waiting] > due:
                row |= _answer(service, None)
            else:
                begins.append(max(due, free))
                free = begins[-1] + service
                row |= _answer(service, free - due)
            if (row["round"], cell.name) in ended and row["index"] >= requests // 2:
                continue
        written.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in written))

    def note(run: SweepRun) -> None:
        run.client.rates.update({name: cell.rate or 0.0 for name, cell in cells.items()})
        run.cut_visits.extend(blocks)

    edit_run(folder, note)
    return folder


def _answer(service: float, total: float | None) -> dict[str, Any]:
    if total is None:
        refused = {"status": 429, "error": "the queue is full", "total_seconds": None}
        return refused | dict.fromkeys(("latency_seconds", "latency_from_intended_seconds"), OUTSIDE_SECONDS)
    latency = total + OUTSIDE_SECONDS
    return {
        "status": 200, "error": None, "latency_seconds": latency, "latency_from_intended_seconds": latency,
        "total_seconds": total, "queue_seconds": total - service,
        "time_to_first_token_seconds": total - service + FIRST_TOKEN_SHARE * service,
    }  # fmt: skip
