"""The named plans, an estimate of their duration, and a plan's description before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from loadtests.plan.cells import BASELINE, Cell, Plan, PlanError, SloTable, order
from loadtests.plan.plan_file import PlanDocument, plan_of, read_plan_file

Preset = Literal["quick", "standard", "full", "gpu", "saturation"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
PRESET_FOLDER = Path(__file__).with_name("preset_files")

_RELATIVE_COST = {
    "eager": 1.0,
    "no_grad": 0.85,
    "inference_mode": 0.75,
    "compiled": 0.5,
    "reduce-overhead": 0.5,
    "cuda-graph": 0.5,
    "max-autotune": 0.4,
    "aot-inductor": 0.4,
    "auto": 0.5,
}
"""A mode's usual share of eager's time, for estimates; one that is not listed counts as eager."""

_CHUNKS = {"short": 1, "any": 2, "long": 5}


def preset_document(preset: str) -> PlanDocument:
    """The plan file of a preset. Raises PlanError for a name that is none."""
    if preset not in PRESETS:
        raise PlanError(f"no preset '{preset}': try one of {', '.join(PRESETS)}")
    return read_plan_file(PRESET_FOLDER / f"{preset}.toml")


def overridden(
    document: PlanDocument,
    seed: int | None = None,
    modes: Sequence[str] | None = None,
    batch_sizes: Sequence[int] | None = None,
    slo: SloTable | None = None,
) -> PlanDocument:
    """`document` with another seed, other modes, batch sizes or SLO where given. Raises PlanError."""
    if batch_sizes is not None and not all(size >= 1 for size in batch_sizes):
        raise PlanError(f"batch sizes are at least 1, got {', '.join(map(str, batch_sizes))}")
    changes: dict[str, object] = {
        "seed": seed,
        "modes": list(modes) if modes else None,
        "batch_sizes": list(batch_sizes) if batch_sizes else None,
        "slo": slo,
    }
    return msgspec.structs.replace(
        document, **{name: value for name, value in changes.items() if value is not None}
    )


def make_plan(
    preset: Preset,
    seed: int = 0,
    modes: Sequence[str] | None = None,
    batch_sizes: Sequence[int] | None = None,
) -> Plan:
    """The plan called `preset`, with other modes or batch sizes where given. Raises PlanError."""
    return plan_of(overridden(preset_document(preset), seed, modes, batch_sizes))


def request_seconds(cell: Cell) -> float:
    """About what one request takes for `tiny` on one core of the reference machine.

    Straight lines through eager's decode step (2.2 ms at batch 1, 7 ms at 16) and prefill chunk (10 ms and
    125 ms), times the mode's usual share of eager.
    """
    step = 0.0019 + 0.00032 * cell.batch_size
    chunk = 0.0025 + 0.0075 * cell.batch_size
    eager = cell.new_tokens * step + _CHUNKS[cell.prompt_set] * chunk
    return eager * _RELATIVE_COST.get(cell.mode, 1.0)


def estimate_seconds(plan: Plan) -> float:
    """About how long the least number of rounds takes on the reference machine, with two warm-up passes."""
    one_pass = sum(request_seconds(cell) for cell in plan.cells)
    rounds = plan.rounds * _round_seconds(plan.cells)
    return plan.warmup_passes_least * one_pass + rounds


def estimate_most_seconds(plan: Plan) -> float:
    """As `estimate_seconds`, where no main group is decided before the last round."""
    undecided = [cell for cell in plan.cells if cell.group in plan.main_groups]
    return estimate_seconds(plan) + (plan.looks[-1] - plan.rounds) * _round_seconds(undecided)


def _round_seconds(cells: Iterable[Cell]) -> float:
    return sum(cell.requests * _seconds_per_request(cell) for cell in cells)


def _seconds_per_request(cell: Cell) -> float:
    """Of a visit: the mean gap of the arrivals, or the service's own time where that is longer."""
    seconds = request_seconds(cell)
    if cell.rate is not None:
        return max(seconds, 1 / cell.rate)
    return max(seconds, seconds / (cell.load or 1.0))


def describe(plan: Plan) -> str:
    """The plan as text: its cells, the order of every round, and its estimated duration."""
    seconds = estimate_seconds(plan)
    lines = [
        f"preset {plan.preset}, seed {plan.seed}: {len(plan.cells)} cells × {plan.rounds} rounds, "
        f"{plan.requests} requests, about {seconds:.0f} s ({seconds / 60:.1f} min) on the reference machine",
        *_more_rounds(plan),
        f"warm-up: {plan.warmup_passes_least} to {plan.warmup_passes_most} passes over all cells; baseline "
        f"'{BASELINE}', and 'control' cells that run it a second time",
        *([f"SLO: {plan.slo.text}"] if plan.slo else []),
        "",
        "cells",
    ]
    numbers = {cell.name: number for number, cell in enumerate(plan.cells, start=1)}
    lines += [
        f"  {numbers[cell.name]:>3}  {cell.name}, {cell.requests} requests per visit" for cell in plan.cells
    ]
    lines += ["", "order"]
    for number in range(1, plan.rounds + 1):
        lines.append(f"  round {number:>2}  " + " ".join(str(numbers[c.name]) for c in order(plan, number)))
    if len(plan.looks) > 1:
        lines.append(f"  then, to round {plan.looks[-1]}, the cells of undecided groups in the seed's order")
    return "\n".join(lines)


def _more_rounds(plan: Plan) -> list[str]:
    """What may follow the least number of rounds; nothing where the plan has no more."""
    if len(plan.looks) == 1:
        return []
    most = estimate_most_seconds(plan)
    return [
        f"after rounds {', '.join(map(str, plan.looks))}: batch sizes whose fastest mode is not told apart "
        f"(at {plan.confidence:.1%}) go on, to {plan.looks[-1]} rounds; at most about {most:.0f} s in all"
    ]
