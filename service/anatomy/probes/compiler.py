"""Probes of what the compiler sees: graph breaks, guards, shapes, a custom operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from models.served import Cache, Served
from service.anatomy.common import Report, StudyError
from service.anatomy.operators.compiled import entries
from service.anatomy.probes.faults import (
    EVENTS,
    Counter,
    FaultComparison,
    ProbedModel,
    TimedStep,
    compile_counting,
    compiled,
    failed_guard,
    recompiles,
    seconds_of,
)
from service.anatomy.rms_norm import Norm, rms_norm_operator


def graph_break(probed: ProbedModel, report: Report) -> FaultComparison:
    """A clock read between two layers."""
    faulty = probed.copy()
    probed.layers(faulty)[0].register_forward_hook(_read_clock)
    return _compare_breaks(probed, probed.model, faulty, _read_clock, report)


def _compare_breaks(
    probed: ProbedModel, whole: Served, broken: Served, fault: Callable[..., object], report: Report
) -> FaultComparison:
    report("compiling the step whole")
    without = probed.served(compiled(whole))
    before = compile_counting(without)
    report("compiling it around the break")
    with_fault = probed.served(compiled(broken))
    after = compile_counting(with_fault)
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter("graph_breaks", before.breaks, after.breaks),
        fault=fault,
        notes=[
            f"{before.graphs} graph became {after.graphs}, with Python between them. "
            f"The compiler's reason: {after.reason}."
        ],
    )


def _read_clock(layer: Any, inputs: object, output: object) -> None:  # noqa: ANN401 - sets a new attribute
    layer.left_at_seconds = perf_counter()  # the fault


class _Counting(nn.Module):
    def __init__(self, model: Served) -> None:
        super().__init__()
        self.model = model
        self.steps = 0

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> object:
        self.steps += 1  # the fault
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
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault, warm_passes=0),
        most_repeats=EVENTS,
        counter=Counter("recompiles", before, recompiles(counting)),
        fault=_Counting.forward,
        notes=[
            failed_guard(),
            f"The first compilation took {first:.1f} s. Those that are timed found their kernels in the "
            "compiler's cache: only tracing and guards were repeated.",
        ],
    )


def grad_mode_mismatch(probed: ProbedModel, report: Report) -> FaultComparison:
    """A step compiled in inference mode and called with grad mode on."""
    step = compiled(probed.model)

    def as_warmed(*arguments: object) -> object:
        with torch.inference_mode(True), torch.no_grad():
            return step(*arguments)

    def with_grad_mode(*arguments: object) -> object:
        with torch.inference_mode(False), torch.enable_grad():  # the fault
            return step(*arguments)

    without, with_fault = probed.served(as_warmed), probed.served(with_grad_mode)
    report("compiling in inference mode")
    without()
    before = recompiles(step)
    report("compiling again with grad mode on")
    again = seconds_of(with_fault)
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter("recompiles", before, recompiles(step)),
        fault=with_grad_mode,
        notes=[
            failed_guard(),
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
        torch.set_num_threads(other)  # the fault
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
    with_fault()
    after = recompiles(affected[0])
    torch.set_num_threads(threads)
    return FaultComparison(
        without=TimedStep(without),
        most_repeats=EVENTS,
        with_fault=TimedStep(
            with_fault, prepare=warm_again, after=lambda: torch.set_num_threads(threads), warm_passes=0
        ),
        counter=Counter("recompiles", before, after),
        fault=changed,
        notes=[
            failed_guard(),
            f"Each faulty call is the first one after a change from {threads} to {other}. Its kernels came "
            "from the compiler's cache, which had them from the first such change.",
        ],
    )


LIMIT = 2
"""The recompile limit, lowered from torch's 8 so that the probe takes less time."""

_MOST_LENGTHS = 10


def unbucketed_shape(probed: ProbedModel, report: Report) -> FaultComparison:
    """Prompts of several lengths padded to one shape, and each in its own."""
    prompts = _prompts_of_lengths(probed)
    padded, own = compiled(probed.model), compiled(probed.model)
    without = probed.served(_padding(padded, cycle(prompts)), "prefill")
    report("compiling one padded length")
    without()
    first = _unpadded(probed, own, iter(prompts[:LIMIT]))
    report(f"compiling {LIMIT} lengths")
    first()
    new_shape = seconds_of(first)
    # All entries are used; the lengths that have one do not come again.
    with_fault = _unpadded(probed, own, cycle(prompts[LIMIT:]))
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        fault=_unpadded,
        counter=Counter("compiled_entries", len(entries(padded)), len(entries(own))),
        notes=[
            failed_guard(),
            f"A new length took {new_shape:.2f} s to compile. What is timed comes after it: {LIMIT} entries "
            "are used up (torch's own limit is 8), and each further length runs uncompiled.",
            "With `fullgraph=True`, as the compiled modes have it, the limit raises instead.",
        ],
    )


def _prompts_of_lengths(probed: ProbedModel) -> list[Tensor]:
    """Chunks of different lengths, all shorter than a whole one. Raises StudyError for a chunk below 5."""
    chunk = probed.buffers.arguments("prefill")[0]
    longest = chunk.shape[1] - 1
    lengths = range(longest, max(longest - _MOST_LENGTHS, 1), -1)
    if len(lengths) <= LIMIT:
        raise StudyError(
            "unsupported_here",
            f"prompts of several lengths do not fit a prefill chunk of {chunk.shape[1]}: make it 8 or more",
        )
    return [chunk[:, :length].clone() for length in lengths]


def _padding(step: Callable[..., object], prompts: Iterator[Tensor]) -> Callable[..., object]:
    def pad(chunk: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> object:
        prompt = next(prompts)
        length = prompt.shape[1]
        chunk[:, :length] = prompt
        chunk[:, length:] = 0
        last.fill_(length - 1)
        return step(chunk, positions, last, cache)

    return pad


def _unpadded(
    probed: ProbedModel, step: Callable[..., object], prompts: Iterator[Tensor]
) -> Callable[[], object]:
    """A prefill by `step` of the next of `prompts`, which replaces the chunk that it is called with."""

    def run_unpadded(chunk: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> object:
        prompt = next(prompts)
        last.fill_(prompt.shape[1] - 1)
        return step(prompt, positions, last, cache)  # the fault

    return probed.served(run_unpadded, "prefill")


_EPSILONS = ("epsilon", "variance_epsilon", "eps")


class _Norm(nn.Module):
    def __init__(self, kernel: Norm, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = weight
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.weight, self.epsilon)  # the fault


def custom_op(probed: ProbedModel, report: Report) -> FaultComparison:
    """The last norm through a custom kernel: as a registered operator, and as a plain function."""
    kernel = rms_norm_operator()
    plain = torch.compiler.disable(kernel)
    return _compare_breaks(
        probed, _with_norm(probed, kernel), _with_norm(probed, plain), _Norm.forward, report
    )


def _with_norm(probed: ProbedModel, kernel: Norm) -> Served:
    """A copy of the model whose last RMS norm runs `kernel`. Raises StudyError where it has none."""
    model = probed.copy()
    norms = [(name, module) for name, module in model.named_modules() if "RMSNorm" in type(module).__name__]
    if not norms:
        raise StudyError("unsupported_here", "this probe replaces an RMS norm, and this model has none")
    name, norm = norms[-1]
    epsilon = next(float(getattr(norm, known)) for known in _EPSILONS if hasattr(norm, known))
    parent, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(parent), own_name, _Norm(kernel, norm.get_parameter("weight"), epsilon))
    return model
