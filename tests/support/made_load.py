"""Results folders with open-loop cells of known knees: one request at a time, first come first served."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadtests.plan.cells import Arrivals, Cell, Plan, Slo
from loadtests.plan.presets import make_plan
from loadtests.run.run_file import CutVisit
from tests.support.made_evidence import edit_run
from tests.support.made_results import make_results

SERVICE = {"eager": 0.02, "inference_mode": 0.01}
"""Mean seconds in service: at most 50 and 100 requests per second."""

KNEES = {"eager": 36.8, "inference_mode": 86.6}
"""Requests per second of which 95 % are answered within 0.12 s, over 200 visits of 4,000 requests each."""

OUTSIDE_SECONDS = 0.0002
FIRST_TOKEN_SHARE = 0.25
"""Of a request's time in service, until its first token."""


def make_load(
    folder: Path,
    rates: Sequence[float],
    *,
    slo: Slo | None = None,
    requests: int = 100,
    rounds: int = 8,
    most_waiting: int = 64,
    arrivals: Arrivals = "poisson",
    cut: Sequence[tuple[int, str]] = (),
) -> Path:
    """A sweep of the preset quick at batch 1, with each of `rates` for every mode of `SERVICE`.

    The visits `cut`, by round and mode, end after half of their requests, at the highest rate.
    """
    cells = [
        Cell(mode=mode, batch_size=1, rate=rate, arrivals=arrivals, requests=requests)
        for rate in rates
        for mode in SERVICE
    ]
    make_results(folder, plan=_plan(cells, list(SERVICE), rounds, slo))
    cut_cells = {
        (number, cell.name): cell
        for number, mode in cut
        for cell in cells[-len(SERVICE) :]
        if cell.mode == mode
    }
    _replace_rows(folder, cells, most_waiting, rounds, set(cut_cells))
    edit_run(folder, lambda run: run.client.rates.update({cell.name: cell.rate or 0.0 for cell in cells}))
    visits = [
        CutVisit(round=number, cell=name, sent=requests // 2, reason="its queue only grew")
        for number, name in cut_cells
    ]
    edit_run(folder, lambda run: run.cut_visits.extend(visits))
    return folder


def _plan(cells: Sequence[Cell], modes: list[str], rounds: int, slo: Slo | None) -> Plan:
    plan = make_plan("quick", 1, modes=modes, batch_sizes=[1])
    return msgspec.structs.replace(
        plan, rounds=rounds, rounds_most=None, cells=(*plan.cells, *cells), slo=slo
    )


def _replace_rows(
    folder: Path,
    cells: Sequence[Cell],
    most_waiting: int,
    rounds: int,
    cut: set[tuple[int, str]],
) -> None:
    path = folder / "requests.jsonl"
    names = {cell.name for cell in cells}
    kept, models = [], {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["cell"] not in names:
            kept.append(row)
        else:
            models[row["cell"]] = row
    random = np.random.default_rng(3)
    for cell in cells:
        kept += _rows(cell, models[cell.name], SERVICE[cell.mode], most_waiting, rounds, cut, random)
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))


def _rows(
    cell: Cell,
    model: dict[str, Any],
    seconds: float,
    most_waiting: int,
    rounds: int,
    cut: set[tuple[int, str]],
    random: np.random.Generator,
) -> Iterator[dict[str, Any]]:
    gaps = random.exponential(1.0, (rounds, cell.requests)) / (cell.rate or 0.0)
    gaps[:, 0] = 0.0
    service = seconds * random.lognormal(-0.011, 0.15, gaps.shape)
    arrivals = np.cumsum(gaps, axis=1)
    for number, (due, own) in enumerate(zip(arrivals.tolist(), service.tolist(), strict=True), 1):
        start = model["start"] + 1000.0 * number
        sent = cell.requests // 2 if (number, cell.name) in cut else cell.requests
        answers = [_answer(*one) for one in _in_turn(due, own, most_waiting)]
        for index in range(sent):
            at = {"round": number, "index": index, "stage": "measure", "intended_start": start + due[index]}
            yield model | at | {"start": start + due[index]} | answers[index]


def _in_turn(
    due: Sequence[float], service: Sequence[float], most_waiting: int
) -> Iterator[tuple[float, float | None]]:
    """Each request's time in service and latency; None: so many waited that it was refused."""
    begins = list[float]()
    free = 0.0
    for now, seconds in zip(due, service, strict=True):
        if len(begins) >= most_waiting and begins[-most_waiting] > now:
            yield seconds, None
            continue
        begins.append(max(now, free))
        free = begins[-1] + seconds
        yield seconds, free - now


def _answer(service: float, total: float | None) -> dict[str, Any]:
    if total is None:
        refused = {"status": 429, "error": "the queue is full", "total_seconds": None}
        return refused | dict.fromkeys(("latency_seconds", "latency_from_intended_seconds"), OUTSIDE_SECONDS)
    latency = total + OUTSIDE_SECONDS
    return {
        "status": 200,
        "error": None,
        "latency_seconds": latency,
        "latency_from_intended_seconds": latency,
        "total_seconds": total,
        "queue_seconds": total - service,
        "time_to_first_token_seconds": total - service + FIRST_TOKEN_SHARE * service,
    }
