"""How one cell differs between two builds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtests.compare.side import Side, swept_in_turn
from loadtests.plan.cells import Cell
from loadtests.report.frame import PARTS
from service.protocol.modes import AUTO
from service.statistics.builds import (
    LATENCY_SCATTER,
    RATIO_SCATTER,
    Difference,
    Scatter,
    difference,
)
from service.statistics.choice import MINIMUM_ROUNDS


@dataclass(frozen=True, slots=True)
class CellChange:
    """One cell before and after, in seconds; `latency` is the difference of the two builds' latencies.

    `relative` is that of the mode's latency over the baseline's within each sweep; None for the baseline.
    `parts` are differences of means per request, in seconds; None where a device has no such part.
    """

    cell: Cell
    before_seconds: float
    after_seconds: float
    rounds: tuple[int, int]
    latency: Difference
    relative: Difference | None
    parts: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Matched:
    """The cells that both sides have, and the reason for each that is left out, by its name."""

    changes: tuple[CellChange, ...]
    left_out: dict[str, str]


def matched(before: Side, after: Side, stated: Scatter | None = None) -> Matched:
    """Compare each cell of both sides. `stated` replaces the scatter assumed of sweeps of one build."""
    sides = ((before, after), (after, before))
    left_out = {
        name: f"only in {side.path}"
        for side, other in sides
        for name in side.cells.keys() - other.cells.keys()
    }
    left_out |= {name: f"not in every sweep of {side.path}" for side, _ in sides for name in side.partial}
    of_auto = {name for side in (before, after) for name, cell in side.cells.items() if cell.mode == AUTO}
    left_out |= dict.fromkeys(of_auto, "runs what each sweep was advised, which is no difference of builds")
    in_turn = swept_in_turn(before, after)
    changes = []
    for name in (name for name in before.cells if name in after.cells and name not in left_out):
        few = _least_rounds(before, after, before.cells[name])
        if few < MINIMUM_ROUNDS and len(before.sweeps) == len(after.sweeps) == 1:
            left_out[name] = f"{few} rounds, at least {MINIMUM_ROUNDS} are needed in a single sweep"
        else:
            changes.append(_change(before, after, before.cells[name], stated, in_turn))
    return Matched(tuple(changes), dict(sorted(left_out.items())))


def _least_rounds(before: Side, after: Side, cell: Cell) -> int:
    return min(len(rounds) for side in (before, after) for rounds in side.latencies(cell))


def _change(before: Side, after: Side, cell: Cell, stated: Scatter | None, in_turn: bool) -> CellChange:
    seconds = [[list(rounds.values()) for rounds in side.latencies(cell)] for side in (before, after)]
    ratios = before.ratios(cell), after.ratios(cell)
    relative = None
    if ratios[0] is not None and ratios[1] is not None:
        relative = difference(ratios[0], ratios[1], stated or RATIO_SCATTER, in_turn)
    return CellChange(
        cell=cell,
        before_seconds=_typical(seconds[0]),
        after_seconds=_typical(seconds[1]),
        rounds=(sum(map(len, seconds[0])), sum(map(len, seconds[1]))),
        latency=difference(seconds[0], seconds[1], stated or LATENCY_SCATTER, in_turn),
        relative=relative,
        parts={part: _part(before, after, cell, f"{part}_seconds_mean") for part in PARTS},
    )


def _part(before: Side, after: Side, cell: Cell, column: str) -> float | None:
    ends = before.mean_seconds(cell, column), after.mean_seconds(cell, column)
    return None if ends[0] is None or ends[1] is None else ends[1] - ends[0]


def _typical(sweeps: Sequence[Sequence[float]]) -> float:
    """The geometric mean over sweeps of the geometric means over rounds."""
    return math.exp(fmean(fmean(map(math.log, rounds)) for rounds in sweeps))
