"""Probes of guards: changes between two calls of a compiled step that recompile it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.served import Cache, Served
from service.anatomy.probes.blame import line_in, line_that_calls
from service.anatomy.probes.comparison import EVENTS, Counter, FaultComparison, TimedStep
from service.anatomy.probes.compiling import compiled, failed_guard, recompiles, seconds_of, why_recompiled
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report


class _Counting(nn.Module):
    """The step, and a Python number that it reads."""

    def __init__(self, model: Served) -> None:
        super().__init__()
        self.model = model
        self.steps = 0
        self.reports = 0

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> object:
        self.steps += 1
        if self.steps % 1000 == 0:
            self.reports += 1
        return self.model(tokens, positions, last, cache)


def recompile(probed: ProbedModel, report: Report) -> FaultComparison:
    """A Python counter in the step: each value is a guard, and each call has a new value."""
    plain = compiled(probed.model)
    counting = compiled(_Counting(probed.model))
    without, with_fault = probed.served(plain), probed.served(counting)
    report("compiling the step")
    first = seconds_of(without)
    with_fault()
    before = recompiles(counting)
    report("compiling it again at every call")
    with_fault()
    reason = why_recompiled()
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault, warm_passes=0),
        most_repeats=EVENTS,
        counter=Counter(name="recompiles", before=before, after=recompiles(counting)),
        blame=line_in(reason),
        notes=[
            failed_guard(reason),
            f"The first compilation took {first:.1f} s. Those that are timed found their kernels in the "
            "compiler's cache: only tracing and guards were repeated.",
            "From the 9th value on the step runs uncompiled: torch's recompile limit (see unbucketed-shape).",
        ],
    )


def grad_mode_mismatch(probed: ProbedModel, report: Report) -> FaultComparison:
    """A step compiled in inference mode and called with grad mode on."""
    step = compiled(probed.model)

    def as_warmed(*arguments: object) -> object:
        with torch.inference_mode(True), torch.no_grad():
            return step(*arguments)

    def with_grad_mode(*arguments: object) -> object:
        with torch.inference_mode(False), torch.enable_grad():
            return step(*arguments)

    without, with_fault = probed.served(as_warmed), probed.served(with_grad_mode)
    report("compiling in inference mode")
    without()
    before = recompiles(step)
    report("compiling again with grad mode on")
    again = seconds_of(with_fault)
    reason = why_recompiled()
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(name="recompiles", before=before, after=recompiles(step)),
        blame=line_that_calls(torch.enable_grad.__enter__.__code__, with_fault),
        notes=[
            failed_guard(reason),
            f"The first call in the other mode took {again:.2f} s. What is timed comes after it: the second "
            "entry, which saves tensors for a backward pass that is never run.",
        ],
    )


def thread_change(probed: ProbedModel, report: Report) -> FaultComparison:
    """The number of threads changed between warm-up and a call."""
    threads = torch.get_num_threads()
    other = threads - 1 if threads > 1 else threads + 1
    without = probed.served(compiled(probed.model))
    affected = [compiled(probed.model)]

    def changed(*arguments: object) -> object:
        torch.set_num_threads(other)
        return affected[0](*arguments)

    def warm_again() -> None:
        affected[0] = compiled(probed.model)
        probed.served(affected[0])()

    with_fault = probed.served(changed)
    report(f"compiling for {threads} threads")
    without()
    warm_again()
    before = recompiles(affected[0])
    report(f"compiling for {other} threads")
    blame = line_that_calls(torch.set_num_threads, with_fault)
    after = recompiles(affected[0])
    reason = why_recompiled()
    torch.set_num_threads(threads)
    return FaultComparison(
        without=TimedStep(without),
        most_repeats=EVENTS,
        with_fault=TimedStep(
            with_fault, prepare=warm_again, after=lambda: torch.set_num_threads(threads), warm_passes=0
        ),
        counter=Counter(name="recompiles", before=before, after=after),
        blame=blame,
        notes=[
            failed_guard(reason),
            f"Each faulty call is the first one after a change from {threads} to {other}. Its kernels came "
            "from the compiler's cache, which had them from the first such change.",
        ],
    )
