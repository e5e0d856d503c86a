"""Adds to a made results folder what a newer service records: intervals, samples, compilations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtests.run.run_file import RoundMachine, SweepRun, read_run, write_run

Row = dict[str, Any]
COMPILED = ("compiled", "reduce-overhead")
BATCHES = (1, 4, 16)


def edit_rows(folder: Path, change: Callable[[Row], None]) -> None:
    """Apply `change` to every row of `requests.jsonl` that has timings."""
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row.get("decode"):
            change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


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
    """Before each visit a request was sampled: in both phases these were in kernels, in the host, in code of
    no class, and one in the system.
    """
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    written, seen = [], set()
    for row in rows:
        visit = (row["round"], row["cell"])
        if row["stage"] == "measure" and visit not in seen:
            seen.add(visit)
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
        "kernel_samples": kernel,
        "host_samples": host,
        "system_samples": 1,
        "unclassified_samples": unclassified,
        "samples_of": of,
    }


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
