"""Probe of dynamic shapes: prompts of several lengths, the length marked as dynamic or not."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, repeat

import torch
from torch import Tensor

from service.anatomy.probes.blame import line_that_calls
from service.anatomy.probes.comparison import EVENTS, Counter, FaultComparison, TimedStep, ratio_of
from service.anatomy.probes.compiling import compiled, failed_guard, recompiles, seconds_of, why_recompiled
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.probes.shapes import prompts_of_lengths, unpadded
from service.anatomy.progress import Report

LENGTHS = 4
"""Lengths that are counted, fewer than torch's recompile limit."""


@dataclass(slots=True)
class _Lengths:
    """A step that is compiled for the first of `prompts`, and then called with the second."""

    probed: ProbedModel
    prompts: list[Tensor]
    step: types.FunctionType

    def warm(self) -> None:
        """Compile anew, for the first length."""
        self.step = compiled(self.probed.model)
        self._call(0)

    def call(self) -> None:
        """Call with the second length, which compiles where the step has not seen it."""
        self._call(1)

    def _call(self, place: int) -> None:
        self.probed.served(unpadded(self.step, repeat(self.prompts[place])), "prefill")()


def dynamic_shapes(probed: ProbedModel, report: Report) -> FaultComparison:
    """Timed is a call at a new length, with code for all of them and without."""
    prompts = prompts_of_lengths(probed, LENGTHS)[:LENGTHS]
    marked = [prompt.clone() for prompt in prompts]
    for prompt in marked:
        torch._dynamo.mark_dynamic(prompt, 1)
    report(f"tracing {LENGTHS} lengths")
    before, after = _recompiles(probed, marked), _recompiles(probed, prompts)
    reason = why_recompiled()
    dynamic = compiled(probed.model)
    without = probed.served(unpadded(dynamic, cycle(marked)), "prefill")
    report("compiling for all lengths")
    without()
    lengths = _Lengths(probed, prompts, dynamic)
    report("compiling for two lengths")
    lengths.warm()
    first = seconds_of(lengths.call)
    blame = line_that_calls(dynamic.__code__, lengths.call)
    price = _price(probed, (dynamic, marked[0]), (lengths.step, prompts[0]))
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(lengths.call, prepare=lengths.warm, warm_passes=0),
        most_repeats=EVENTS,
        counter=Counter(name="recompiles", before=before, after=after),
        blame=blame,
        notes=[
            f"Counted over {LENGTHS} lengths. {failed_guard(reason)}",
            f"The second length took {first:.2f} s to compile. Those that are timed found their kernels in "
            "the compiler's cache.",
            price,
        ],
    )


def _recompiles(probed: ProbedModel, prompts: list[Tensor]) -> int:
    """How often the step is traced again for `prompts`; no code is generated."""
    step = compiled(probed.model, backend="eager")
    run = probed.served(unpadded(step, iter(prompts)), "prefill")
    for _ in prompts:
        run()
    return recompiles(step)


def _price(
    probed: ProbedModel,
    for_all: tuple[Callable[..., object], Tensor],
    for_one: tuple[Callable[..., object], Tensor],
) -> str:
    """What the code for all lengths takes at one length, beside the code for that length alone."""
    every, alone = (
        TimedStep(probed.served(unpadded(step, repeat(prompt)), "prefill"))
        for step, prompt in (for_all, for_one)
    )
    found = ratio_of(every, alone, probed.bench.synchronise)
    return (
        f"At one length the code for all lengths takes {found.value:.2f} times as long "
        f"[{found.low:.2f} to {found.high:.2f}] as the code for that length alone."
    )
