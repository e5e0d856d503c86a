"""Adds to a made results folder what a newer service records: intervals, floors, stacks, compilations."""

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


def floor(
    mode: str, phase: str, batch: int, seconds: float, share: float | None, wall: float
) -> dict[str, Any]:
    """One floor of run.json; `share`: kernel's by the sampled stacks, of a step of `wall` seconds."""
    stacks = None if share is None else {"kernel_share": share, "low": share - 0.03, "high": share + 0.03}
    return {
        "mode": mode,
        "phase": phase,
        "batch": batch,
        "seconds": seconds,
        "low": 0.97 * seconds,
        "high": 1.03 * seconds,
        "samples": 64,
        "samples_seconds": [seconds],
        "source": "calibrated",
        "stacks": stacks and stacks | {"samples": 400, "step_seconds": wall},
    }


def with_floors(folder: Path, off: float | None = 0.02, moved: float = 1.0) -> Path:
    """Floors before and after (by `moved`); stacks say `off` less kernel than the rows, None: no stacks."""
    walls: dict[tuple[str, str, int], tuple[float, float]] = {}

    def collect(row: Row) -> None:
        for phase in ("prefill", "decode"):
            timing = row[phase]
            place = (row["mode"], phase, row["batch_size"])
            walls[place] = (
                timing["dispatch_seconds"] / timing["steps"],
                timing["wall_seconds"] / timing["steps"],
            )

    edit_rows(folder, collect)

    def change(run: SweepRun) -> None:
        for target, factor in ((run.floors_before, 1.0), (run.floors_after, moved)):
            target.clear()
            for place, (dispatch, wall) in sorted(walls.items()):
                share = None if off is None else 1 - dispatch / wall - off
                target.append(floor(*place, factor * dispatch, share, wall))

    edit_run(folder, change)
    return folder


def with_samples(
    folder: Path, split: Callable[[Row], tuple[int, int, int]] = lambda row: (60, 40, 0)
) -> Path:
    """Before each visit a request was sampled: in both phases these were in kernels, in the host, unnamed."""
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    written, seen = [], set()
    for row in rows:
        visit = (row["round"], row["cell"])
        if row["stage"] == "measure" and visit not in seen:
            seen.add(visit)
            counts = zip(("kernel_samples", "host_samples", "unnamed_samples"), split(row), strict=True)
            sampled = json.loads(json.dumps(row)) | {"stage": "sample", "latency_seconds": 99.0}
            for phase in ("prefill", "decode"):
                sampled[phase] = (sampled.get(phase) or {}) | dict(counts := list(counts))
            written.append(sampled)
        written.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    return folder


def with_compilations(folder: Path, seconds: float = 0.6, cold_seconds: float | None = 12.0) -> Path:
    """Decode, prefill and their twins at every bucket, loaded from a warm cache in `seconds` each."""
    entry = {"seconds": seconds, "cold": False, "cold_seconds": cold_seconds}

    def change(run: SweepRun) -> None:
        for mode in run.modes:
            if mode["mode"] in COMPILED:
                mode["compilations"] = [
                    entry | {"phase": phase, "batch": batch, "twin": twin}
                    for batch in BATCHES
                    for phase in ("prefill", "decode")
                    for twin in (False, True)
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
