"""The named plans, an estimate of their duration, and a plan's description before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from loadtests.plan.cells import (
    BASELINE,
    Cell,
    Plan,
    PlanError,
    check,
    ladder_cells,
    order,
    saturation_cells,
)
from service.protocol.modes import default_modes, named_modes

Preset = Literal["quick", "standard", "full", "gpu"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
LOADS = (0.3, 0.6, 0.8, 0.9)

_RELATIVE_COST = {
    "eager": 1.0,
    "no_grad": 0.85,
    "inference_mode": 0.75,
    "compiled": 0.5,
    "reduce-overhead": 0.5,
    "cuda-graph": 0.5,
    "max-autotune": 0.4,
    "aot-inductor": 0.4,
}
"""A mode's usual share of eager's time, for estimates; one that is not listed counts as eager."""

_CHUNKS = {"short": 1, "any": 2, "long": 5}


def make_plan(
    preset: Preset,
    seed: int = 0,
    modes: Sequence[str] | None = None,
    batch_sizes: Sequence[int] | None = None,
) -> Plan:
    """The plan called `preset`, with other modes or batch sizes where given. Raises PlanError."""
    if preset not in PRESETS:
        raise PlanError(f"no preset '{preset}': try one of {', '.join(PRESETS)}")
    if batch_sizes is not None and not all(size >= 1 for size in batch_sizes):
        raise PlanError(f"batch sizes are at least 1, got {', '.join(map(str, batch_sizes))}")
    try:
        chosen = tuple(named_modes(modes or default_modes()))
    except ValueError as error:
        raise PlanError(str(error)) from error
    build = {"quick": _quick, "standard": _standard, "full": _full, "gpu": _gpu}[preset]
    sizes = tuple(sorted(set(batch_sizes))) if batch_sizes else None
    return check(build(seed, chosen, sizes))


def _quick(seed: int, modes: tuple[str, ...], sizes: tuple[int, ...] | None) -> Plan:
    cells = ladder_cells(modes, sizes or (1, 4, 16))
    return Plan(preset="quick", seed=seed, rounds=8, rounds_most=16, cells=tuple(cells))


def _standard(seed: int, modes: tuple[str, ...], sizes: tuple[int, ...] | None) -> Plan:
    sizes = sizes or (1, 2, 4, 8, 16)
    cells = [*ladder_cells(modes, sizes, requests=5), *saturation_cells(modes, sizes[0], LOADS)]
    return Plan(preset="standard", seed=seed, rounds=10, rounds_most=20, cells=tuple(cells))


def _full(seed: int, modes: tuple[str, ...], sizes: tuple[int, ...] | None) -> Plan:
    sizes = sizes or (1, 2, 4, 8, 16, 32)
    middle = sizes[len(sizes) // 2]
    cells = [
        *ladder_cells(modes, sizes, requests=5),
        *ladder_cells(modes, sizes[:1], new_tokens=128, requests=5),
        *ladder_cells(modes, (sizes[0], middle), prompt_set="long", requests=5),
        *ladder_cells(modes, sizes[:1], concurrency=4, requests=8),
        *saturation_cells(modes, sizes[0], LOADS, requests=20),
        *saturation_cells(modes, middle, LOADS, requests=20),
    ]
    return Plan(preset="full", seed=seed, rounds=12, rounds_most=24, cells=tuple(cells), warmup_passes_most=8)


def _gpu(seed: int, modes: tuple[str, ...], sizes: tuple[int, ...] | None) -> Plan:
    sizes = sizes or (1, 8, 32)
    cells = [
        *ladder_cells(modes, sizes, new_tokens=64, requests=5),
        *saturation_cells(modes, sizes[0], LOADS),
    ]
    return Plan(preset="gpu", seed=seed, rounds=10, rounds_most=20, cells=tuple(cells))


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
    return plan.warmup_passes_least * one_pass + plan.rounds * _round_seconds(plan.cells)


def estimate_most_seconds(plan: Plan) -> float:
    """As `estimate_seconds`, where no main group is decided before the last round."""
    undecided = [cell for cell in plan.cells if cell.group in plan.main_groups]
    return estimate_seconds(plan) + (plan.looks[-1] - plan.rounds) * _round_seconds(undecided)


def _round_seconds(cells: Iterable[Cell]) -> float:
    return sum(request_seconds(cell) * cell.requests / (cell.load or 1.0) for cell in cells)


def describe(plan: Plan) -> str:
    """The plan as text: its cells, the order of every round, and its estimated duration."""
    seconds = estimate_seconds(plan)
    lines = [
        f"preset {plan.preset}, seed {plan.seed}: {len(plan.cells)} cells × {plan.rounds} rounds, "
        f"{plan.requests} requests, about {seconds:.0f} s ({seconds / 60:.1f} min) on the reference machine",
        *_more_rounds(plan),
        f"warm-up: {plan.warmup_passes_least} to {plan.warmup_passes_most} passes over all cells; baseline "
        f"'{BASELINE}', and 'control' cells that run it a second time",
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
