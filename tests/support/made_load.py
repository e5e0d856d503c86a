"""Results folders whose open-loop cells were served by a simulated queue with a known knee."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadtests.plan.arrivals import Arrivals
from loadtests.plan.cells import Cell, Plan
from loadtests.plan.presets import make_plan
from loadtests.plan.slo import Slo
from loadtests.run.run_file import CutVisit
from loadtests.simulated_queue import SimulatedQueue, simulated_visits
from tests.support.made_evidence import edit_run
from tests.support.made_results import make_results

SERVICE = {"eager": 0.02, "inference_mode": 0.01}
"""Mean seconds in service: at most 50 and 100 requests per second."""

OUTSIDE_SECONDS = 0.0002
FIRST_TOKEN_SHARE = 0.25
"""Of a request's time in service, until its first token."""

RATES = tuple(range(10, 141, 10))


def make_load(
    folder: Path,
    rates: Sequence[float] = RATES,
    *,
    service: Mapping[str, float] = SERVICE,
    slo: Slo | None = None,
    requests: int = 100,
    rounds: int = 8,
    queue: SimulatedQueue | None = None,
    arrivals: Arrivals = "poisson",
    cut: Sequence[tuple[int, str]] = (),
) -> Path:
    """A sweep of the preset quick at batch 1, with each of `rates` for every mode of `service`.

    The visits `cut`, by round and mode, end after half of their requests, at the highest rate.
    """
    cells = [
        Cell(mode=mode, batch_size=1, rate=rate, arrivals=arrivals, requests=requests)
        for rate in rates
        for mode in service
    ]
    make_results(folder, plan=_plan(cells, list(service), rounds, slo))
    cut_cells = {
        (number, cell.name): cell
        for number, mode in cut
        for cell in cells[-len(service) :]
        if cell.mode == mode
    }
    _replace_rows(folder, cells, service, queue or SimulatedQueue(), rounds, set(cut_cells))
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
    service: Mapping[str, float],
    queue: SimulatedQueue,
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
        kept += _simulated(cell, models[cell.name], service[cell.mode], queue, rounds, cut, random)
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))


def _simulated(
    cell: Cell,
    model: dict[str, Any],
    seconds: float,
    queue: SimulatedQueue,
    rounds: int,
    cut: set[tuple[int, str]],
    random: np.random.Generator,
) -> Iterator[dict[str, Any]]:
    loads = np.full(rounds, (cell.rate or 0.0) * seconds)
    visits = simulated_visits(queue, loads, np.ones(rounds), cell.requests, random)
    for number in range(1, rounds + 1):
        start = model["start"] + 1000.0 * number
        sent = cell.requests // 2 if (number, cell.name) in cut else cell.requests
        for index in range(sent):
            due, own, total = (
                seconds * float(values[number - 1, index])
                for values in (visits.due, visits.service, visits.latencies)
            )
            at = {"round": number, "index": index, "stage": "measure", "intended_start": start + due}
            yield model | at | {"start": start + due} | _answer(own, total)


def _answer(service: float, total: float) -> dict[str, Any]:
    if np.isnan(total):
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
