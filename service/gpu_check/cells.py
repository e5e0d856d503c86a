"""Cells of the section `ladder`, one per mode and batch, from the rows of its jobs, however many."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

import msgspec

from service.gpu_check.rows import Row
from service.protocol.messages import Outcome
from service.protocol.timings import PhaseTimings, StepProfile
from service.statistics.intervals import paired_ratio

Rounds = dict[int, PhaseTimings]
"""The decode timings of a cell's jobs, by the round that they ran in."""

BASELINE = "eager"
PROFILED_ROUND = 0
"""The first: whatever ends the section later, what the modes launch is known."""


def cells_of(rows: Iterable[Row]) -> list[Row]:
    """A row per mode and batch of which a job ended well: medians per decode step, its profile.

    Their speed-up is against eager in the rounds that both have; None without any. No cell without a plan.
    """
    rows = list(rows)
    outcomes = [outcome for outcome in _outcomes(rows) if outcome is not None]
    planned = next((row for row in rows if row["kind"] == "plan"), None)
    if planned is None:
        return []
    cells = [(mode, batch) for mode in planned["modes"] for batch in planned["batches"]]
    found = {cell: [o for o in outcomes if (o.mode, o.batch_size) == cell] for cell in cells}
    return [
        _cell(mode, batch, own, _timed(found.get((BASELINE, batch), [])))
        for (mode, batch), own in found.items()
        if own
    ]


def without_numbers(rows: Iterable[Row]) -> int:
    """How many jobs ended well and are in no cell, because their rows have no numbers to use."""
    return sum(outcome is None for outcome in _outcomes(rows))


def _outcomes(rows: Iterable[Row]) -> list[Outcome | None]:
    return [_outcome(row) for row in rows if row["kind"] == "job" and row["outcome"] == "ok"]


def _outcome(row: Row) -> Outcome | None:
    """As the engine sent it, but for its texts; None where its numbers are no numbers, or it took no step.

    One such row of a section that was ended must not cost the others their cells.
    """
    try:
        outcome = msgspec.convert({**row, "kind": row["outcome"]}, Outcome)
    except msgspec.ValidationError:
        return None
    return outcome if outcome.timings and outcome.timings.decode.steps else None


def _cell(mode: str, batch: int, outcomes: list[Outcome], eager: Rounds) -> Row:
    timed = _timed(outcomes)
    names = {"kind": "cell", "mode": mode, "effective": outcomes[-1].effective, "batch": batch}
    return {**names, **_medians(timed), **_speedup(timed, eager), **_profiled(outcomes)}


def _timed(outcomes: Iterable[Outcome]) -> Rounds:
    """Of those that ran without the profiler, which disturbs their times also where it finds nothing."""
    rounds = {int(one.id.rpartition("-")[2]): one.timings for one in outcomes}
    return {n: timings.decode for n, timings in rounds.items() if timings and n != PROFILED_ROUND}


def _medians(timed: Rounds) -> dict[str, Any]:
    spans = [p.device_span_seconds / p.steps for p in timed.values() if p.device_span_seconds is not None]
    hosts = [p.dispatch_seconds / p.steps for p in timed.values() if p.dispatch_seconds is not None]
    return {
        "rounds": len(timed),
        "step_seconds": _median(list(map(_per_step, timed.values()))),
        "dispatch_seconds": _median(hosts),
        "span_seconds": _median(spans),
    }


def _speedup(timed: Rounds, eager: Rounds) -> dict[str, float | None]:
    both = sorted(timed.keys() & eager.keys())
    if not both:
        return {"speedup": None, "low": None, "high": None}
    ratio = paired_ratio([_per_step(eager[n]) for n in both], [_per_step(timed[n]) for n in both])
    known = ratio.samples > 1
    return {
        "speedup": ratio.value,
        "low": ratio.low if known else None,
        "high": ratio.high if known else None,
    }


def _profiled(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Of the cell's profiled job, per decode step; None: not profiled, or the profiler saw nothing."""
    profiles: list[list[StepProfile]] = [one.profile for one in outcomes if one.profile]
    decode = next((p for p in profiles[0] if p.phase == "decode"), None) if profiles else None
    names = ("kernel_seconds", "kernels", "launches", "graph_launches")
    return {name: getattr(decode, name, None) for name in names}


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


def _per_step(phase: PhaseTimings) -> float:
    """The period: with what the engine does between two steps, which dispatch and wait leave out."""
    return (phase.period_seconds or 0.0) / phase.steps
