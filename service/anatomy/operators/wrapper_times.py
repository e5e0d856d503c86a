"""What a compiled call costs around its generated code: one layer is left out at a time, in rounds."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Any

import msgspec
import torch

from service.anatomy.median_seconds import MedianSeconds
from service.measure.cases import Case
from service.measure.rounds import in_rounds
from service.statistics.intervals import median_interval

ROUNDS = 24
LEAST_ROUNDS = 6
BUDGET_SECONDS = 0.8
"""After which no further round begins."""

STEPS = 3
LONG_SECONDS = 0.01
"""A call this long is made once per round: what ran before it hardly shows, and three take too long."""


class WrapperTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one call: `whole` = `guards` + `wrappers` + `generated`, each by difference within a round.

    Each is a median over rounds of the shortest of three calls (of calls of 10 ms and more: of one). So
    `whole` is a little less than the step's `step_seconds`, which is a median of all its samples.
    `guards`: with and without `skip_guard_eval_unsafe`. `generated`: the generated code called directly,
    kernels included on a CPU. `wrappers`: the rest, that is entering the mode, the compiled Python frame, and
    AOTAutograd's and Inductor's wrappers.
    """

    whole: MedianSeconds
    guards: MedianSeconds
    wrappers: MedianSeconds
    generated: MedianSeconds


def time_wrappers(
    case: Case,
    graph: Any,  # noqa: ANN401
    inputs: list[Any],
    clock: Callable[[], float] = perf_counter,
) -> WrapperTimes:
    """Time the warmed `case`, whose only generated graph is `graph`, called with `inputs`.

    Rounds end at BUDGET_SECONDS by `clock`, but not before LEAST_ROUNDS.
    """
    call = _on_an_idle_device(case.call_seconds, case)
    direct = _on_an_idle_device(lambda: _direct_seconds(graph, inputs), case)
    long = call() >= LONG_SECONDS
    arms = {
        "whole": lambda: _best(call, long),
        "unguarded": lambda: _unguarded(call, long),
        "generated": lambda: _generated(direct, long),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    began = clock()
    done = 0
    while done < LEAST_ROUNDS or (done < ROUNDS and clock() - began < BUDGET_SECONDS):
        for name, values in in_rounds(arms, 1, f"wrappers/{done}", lambda _: None).items():
            seconds[name] += values
        done += 1
    return WrapperTimes(
        whole=_median(seconds["whole"]),
        guards=_median(_differences(seconds["whole"], seconds["unguarded"])),
        wrappers=_median(_differences(seconds["unguarded"], seconds["generated"])),
        generated=_median(seconds["generated"]),
    )


def _on_an_idle_device(call: Callable[[], float], case: Case) -> Callable[[], float]:
    """`call` after a wait for the device: a full launch queue would block it, and read as dispatch."""
    if not case.buffers.token.is_cuda:
        return call

    def waited() -> float:
        torch.cuda.synchronize()
        return call()

    return waited


def _unguarded(call: Callable[[], float], long: bool) -> float:
    with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
        return _best(call, long)


def _generated(direct: Callable[[], float], long: bool) -> float:
    with torch.inference_mode():
        return _best(direct, long)


def _differences(larger: list[float], smaller: list[float]) -> list[float]:
    return [a - b for a, b in zip(larger, smaller, strict=True)]


def _median(seconds: list[float]) -> MedianSeconds:
    return MedianSeconds.of(median_interval(seconds))


def _best(call: Callable[[], float], long: bool) -> float:
    """Minimum of STEPS calls after an untimed one: the differences are tens of microseconds."""
    if long:
        return call()
    call()
    return min(call() for _ in range(STEPS))


def _direct_seconds(graph: Any, inputs: list[Any]) -> float:  # noqa: ANN401
    torch.compiler.cudagraph_mark_step_begin()
    given = list(inputs)  # generated code empties its argument list
    began = perf_counter_ns()
    graph.current_callable(given)
    return (perf_counter_ns() - began) / 1e9
