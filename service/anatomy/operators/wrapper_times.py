"""What a compiled call costs around its generated code, by leaving one layer out at a time, in turns."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import msgspec
import torch

from service.anatomy.estimate import Estimate, estimate
from service.step.bench import Case

ROUNDS = 24
STEPS = 3


class WrapperTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one call: `whole` = `guards` + `wrappers` + `generated`, each by difference within a round.

    `guards`: with and without `skip_guard_eval_unsafe`. `generated`: the generated code called directly,
    kernels included on a CPU. `wrappers`: the rest, that is entering the mode, the compiled Python frame, and
    AOTAutograd's and Inductor's wrappers.
    """

    whole: Estimate
    guards: Estimate
    wrappers: Estimate
    generated: Estimate


def time_wrappers(case: Case, graph: Any, inputs: list[Any]) -> WrapperTimes:  # noqa: ANN401
    """Time the warmed `case`, whose only generated graph is `graph`, called with `inputs`."""
    whole, unguarded, generated = [], [], []
    for _ in range(ROUNDS):
        whole.append(_best(case.call_seconds))
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            unguarded.append(_best(case.call_seconds))
        with torch.inference_mode():
            generated.append(_best(lambda: _direct_seconds(graph, inputs)))
    return WrapperTimes(
        whole=estimate(whole),
        guards=estimate([a - b for a, b in zip(whole, unguarded, strict=True)]),
        wrappers=estimate([a - b for a, b in zip(unguarded, generated, strict=True)]),
        generated=estimate(generated),
    )


def _best(call: Callable[[], float]) -> float:
    """The shortest of a few calls after one untimed: differences of tens of microseconds drown in others."""
    call()
    return min(call() for _ in range(STEPS))


def _direct_seconds(graph: Any, inputs: list[Any]) -> float:  # noqa: ANN401
    torch.compiler.cudagraph_mark_step_begin()
    given = list(inputs)  # generated code empties the list that it is given
    began = perf_counter_ns()
    graph.current_callable(given)
    return (perf_counter_ns() - began) / 1e9
