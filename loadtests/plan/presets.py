"""The named plans, an estimate of their duration, and a plan's description before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from loadtests.plan.cells import BASELINE, Cell, Plan, PlanError
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
    "compiled-captured": 0.5,
    "max-autotune": 0.4,
    "aot-inductor": 0.4,
}
"""A mode's usual share of eager's time, for estimates; one that is not listed counts as eager."""

_CHUNKS = {"short": 1, "any": 2, "long": 5}

CALLS_SECONDS = 0.05
"""A request of a module has so many calls that it takes about so long in eager."""


def preset_documents(preset: str) -> list[PlanDocument]:
    """The plan file of a preset, by model. Raises PlanError for a name that is none."""
    if preset not in PRESETS:
        raise PlanError(f"no preset '{preset}': try one of {', '.join(PRESETS)}")
    return read_plan_file(PRESET_FOLDER / f"{preset}.toml")


def overridden(
    document: PlanDocument,
    seed: int | None = None,
    modes: list[str] | None = None,
    batch_sizes: list[int] | None = None,
) -> PlanDocument:
    """`document` with another seed, other modes or batch sizes where given. Raises PlanError."""
    if batch_sizes is not None and min(batch_sizes, default=1) < 1:
        raise PlanError(f"batch sizes are at least 1, got {', '.join(map(str, batch_sizes))}")
    given = {"seed": seed, "modes": modes or None, "batch_sizes": batch_sizes or None}
    return msgspec.structs.replace(
        document, **{name: value for name, value in given.items() if value is not None}
    )


def request_seconds(cell: Cell) -> float:
    """About what one request takes for `tiny` on one core of the reference machine, or of a module anywhere.

    Straight lines through eager's decode step (2.2 ms at batch 1, 7 ms at 16) and prefill chunk (10 ms and
    125 ms), times the mode's usual share of eager.
    """
    step = 0.0019 + 0.00032 * cell.batch_size
    chunk = 0.0025 + 0.0075 * cell.batch_size
    if cell.new_tokens is None or cell.prompt_set is None:
        eager = CALLS_SECONDS
    else:
        eager = cell.new_tokens * step + _CHUNKS[cell.prompt_set] * chunk
    return eager * _RELATIVE_COST.get(cell.mode, 1.0)


def estimate_seconds(plan: Plan, model: str | None) -> tuple[float, float]:
    """About how long the least and the most rounds take on the reference machine, with two warm-up passes."""
    one_pass = sum(request_seconds(cell) for cell in plan.cells)
    least = plan.warmup_passes_least * one_pass + plan.rounds * _round_seconds(plan.cells)
    undecided = [cell for cell in plan.cells if cell.group in plan.main_groups]
    most = least + (plan.interim_checks[-1] - plan.rounds) * _round_seconds(undecided)
    size = 28.0 if model == "small" else 1.0  # any other counts as `tiny`
    return size * least, size * most


def _round_seconds(cells: Iterable[Cell]) -> float:
    """Of an open loop the mean gaps of arrivals, or the service's own time where that is longer.

    Of a closed loop one more request, whose steps are sampled.
    """
    found = 0.0
    for cell in cells:
        own = request_seconds(cell)
        gap = own / (cell.load or 1.0) if cell.rate is None else 1 / cell.rate
        found += cell.requests * max(own, gap) + (0.0 if cell.open_loop else own)
    return found


def describe_series(documents: Sequence[PlanDocument]) -> str:
    """The estimated duration of a series as text, and its plans."""
    plans = [(one, plan_of(one)) for one in documents]
    known = [(one.starts, estimate_seconds(plan, one.model)) for one, plan in plans]
    least, most = (sum(starts * ends[end] for starts, ends in known) / 60 for end in (0, 1))
    named = " and ".join(f"{one.starts} of {one.model or 'the model'}" for one in documents)
    head = f"a sweep of each of {named}, one start of the service after another; all requests take about"
    head += f" {least:.0f} to {most:.0f} min, and the starts come on top"
    return "\n\n".join([head, *(describe(plan, one.model) for one, plan in plans)])


def describe(plan: Plan, model: str | None = None) -> str:
    """The plan as text: its cells, and its estimated duration."""
    (seconds, most), checks = estimate_seconds(plan, model), plan.interim_checks
    named = f", model {model}" if model else ""
    lines = [
        f"preset {plan.preset}{named}, seed {plan.seed}: {len(plan.cells)} cells × {plan.rounds} rounds, "
        f"{plan.requests} requests, on a CPU {plan.sampled_requests} more whose steps are sampled, which "
        f"take about {seconds:.0f} s ({seconds / 60:.1f} min) on the reference machine; the start of the "
        "service comes on top, minutes with an empty compile cache"
    ]
    if len(checks) > 1:
        lines.append(
            f"after rounds {', '.join(map(str, checks))}: batch sizes whose answer is not resolved go on, to "
            f"{checks[-1]} rounds; at most about {most:.0f} s of requests in all"
        )
    lines.append(
        f"warm-up: {plan.warmup_passes_least} to {plan.warmup_passes_most} passes over all cells; baseline "
        f"'{BASELINE}', and 'control' cells that run it a second time; each round has an order of its own"
    )
    cells = (f"  {cell.name}, {cell.requests} requests per round" for cell in plan.cells)
    return "\n".join([*lines, "", "cells", *cells])
