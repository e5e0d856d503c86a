"""What a compiled call costs around its generated code, by leaving one layer out at a time, in turns."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Any

import msgspec
import torch

from service.measure.cases import Case
from service.measure.estimate import Estimate, estimate

ROUNDS, LEAST_ROUNDS = 24, 6
BUDGET_SECONDS = 0.8
"""After which no further round begins."""

STEPS = 3
LONG_SECONDS = 0.01
"""A call this long is made once: what comes before it hardly shows, and three of it take too long."""


class WrapperTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one call: `whole` = `guards` + `wrappers` + `generated`, each by difference within a round.

    Each is a median over rounds of the shortest of three calls (of calls of 10 ms and more: of one). So
    `whole` is a little less than the step's `step_seconds`, which is a median of all its samples.
    `guards`: with and without `skip_guard_eval_unsafe`. `generated`: the generated code called directly,
    kernels included on a CPU. `wrappers`: the rest, that is entering the mode, the compiled Python frame, and
    AOTAutograd's and Inductor's wrappers.
    """

    whole: Estimate
    guards: Estimate
    wrappers: Estimate
    generated: Estimate


def time_wrappers(
    case: Case,
    graph: Any,  # noqa: ANN401
    inputs: list[Any],
    clock: Callable[[], float] = perf_counter,
) -> WrapperTimes:
    """Time the warmed `case`, whose only generated graph is `graph`, called with `inputs`.

    In rounds, until `clock` says that the budget is spent.
    """
    whole: list[float] = []
    unguarded, generated = [], []
    began, long = clock(), case.call_seconds() >= LONG_SECONDS
    while len(whole) < LEAST_ROUNDS or (len(whole) < ROUNDS and clock() - began < BUDGET_SECONDS):
        whole.append(_best(case.call_seconds, long))
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            unguarded.append(_best(case.call_seconds, long))
        with torch.inference_mode():
            generated.append(_best(lambda: _direct_seconds(graph, inputs), long))
    return WrapperTimes(
        whole=estimate(whole),
        guards=estimate([a - b for a, b in zip(whole, unguarded, strict=True)]),
        wrappers=estimate([a - b for a, b in zip(unguarded, generated, strict=True)]),
        generated=estimate(generated),
    )


def _best(call: Callable[[], float], long: bool) -> float:
    """The shortest of a few calls after one untimed: differences of tens of microseconds drown in others."""
    if long:
        return call()
    call()
    return min(call() for _ in range(STEPS))


def _direct_seconds(graph: Any, inputs: list[Any]) -> float:  # noqa: ANN401
    torch.compiler.cudagraph_mark_step_begin()
    given = list(inputs)  # generated code empties the list that it is given
    began = perf_counter_ns()
    graph.current_callable(given)
    return (perf_counter_ns() - began) / 1e9
