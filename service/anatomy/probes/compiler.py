"""Probes of what the compiler sees: graph breaks, guards, shapes, a custom operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from service.anatomy.common import Report, StudyError
from service.anatomy.probes.faults import (
    EVENTS,
    NOTHING_COMPILED,
    Counter,
    FaultComparison,
    TimedStep,
    compile_counting,
    compiled,
    failed_guard,
    recompiles,
    seconds_of,
)
from service.anatomy.probes.probed import Probed
from service.anatomy.rms_norm import Norm, rms_norm_operator
from service.step.buffers import StepArguments
from service.step.callables import AnyStep


def graph_break(probed: Probed, report: Report) -> FaultComparison:
    """A clock read between two layers."""
    faulty = probed.copy()
    probed.parts(faulty)[0].register_forward_hook(_read_clock)
    return _compare_breaks(probed, probed.model, faulty, _read_clock, report, probed.places())


def _compare_breaks(
    probed: Probed,
    whole: nn.Module,
    broken: nn.Module,
    fault: Callable[..., object],
    report: Report,
    places: list[str],
) -> FaultComparison:
    report("compiling the step whole")
    without = probed.served(compiled(probed.step(whole)))
    before = compile_counting(without)
    if not before.graphs:
        raise StudyError("unsupported_here", NOTHING_COMPILED)
    report("compiling it around the break")
    with_fault = probed.served(compiled(probed.step(broken)))
    after = compile_counting(with_fault)
    reason = next((one for one in after.reasons if one not in before.reasons), "none that is new")
    already = [f"Without the fault this module has breaks already: {one}." for one in before.reasons[:1]]
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter("graph_breaks", before.breaks, after.breaks),
        fault=fault,
        notes=[
            f"Graphs: {before.graphs} without and {after.graphs} with the fault, where Python runs what is "
            f"outside them. The compiler's reason: {reason}.",
            *already,
            *places,
        ],
    )


def _read_clock(layer: Any, inputs: object, output: object) -> None:  # noqa: ANN401 - sets a new attribute
    layer.left_at_seconds = perf_counter()  # the fault


class _Counting(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.steps = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of `model`
        self.steps += 1  # the fault
        return self.model(*args, **kwargs)


def recompile(probed: Probed, report: Report) -> FaultComparison:
    """A Python counter in the step: each value is a guard, and each call has a new value."""
    plain = compiled(probed.step(probed.model))
    counting = compiled(probed.step(_Counting(probed.model)))
    without, with_fault = probed.served(plain), probed.served(counting)
    report("compiling the step")
    first = seconds_of(without)
    with_fault()
    before = recompiles(counting, _Counting.forward)
    report("compiling it again at every call")
    with_fault()
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault, warm_passes=0),
        most_repeats=EVENTS,
        counter=Counter("recompiles", before, recompiles(counting, _Counting.forward)),
        fault=_Counting.forward,
        notes=[
            failed_guard(),
            f"The first compilation took {first:.1f} s. Those that are timed found their kernels in the "
            "compiler's cache: only tracing and guards were repeated.",
        ],
    )


def grad_mode_mismatch(probed: Probed, report: Report) -> FaultComparison:
    """A step compiled in inference mode and called with grad mode on."""
    step = compiled(probed.step(probed.model))

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


def thread_change(probed: Probed, report: Report) -> FaultComparison:
    """The number of threads changed between warm-up and a call."""
    threads = torch.get_num_threads()
    other = threads - 1 if threads > 1 else threads + 1
    without = probed.served(compiled(probed.step(probed.model)))
    affected = [compiled(probed.step(probed.model))]

    def changed(*arguments: object) -> object:
        torch.set_num_threads(other)  # the fault
        return affected[0](*arguments)

    def warm_again() -> None:
        affected[0] = compiled(probed.step(probed.model))
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


def unbucketed_shape(probed: Probed, report: Report) -> FaultComparison:
    """Inputs of several sizes padded to one shape, and each in its own."""
    batch_size, sizes, note = probed.sizes(LIMIT)
    padded, own = (compiled(probed.step(probed.model)) for _ in range(2))
    without = _calls(probed, padded, cycle([one.padded for one in sizes]))
    report("compiling one padded size")
    without()
    first = _calls(probed, own, iter([one.own for one in sizes[:LIMIT]]))
    report(f"compiling {LIMIT} sizes")
    first()
    new_shape = seconds_of(first)
    # All entries are used; the sizes that have one do not come again.
    with_fault = _calls(probed, own, cycle([one.own for one in sizes[LIMIT:]]))
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        fault=_calls,
        counter=Counter("compiled_entries", 1 + recompiles(padded), 1 + recompiles(own)),
        batch_size=batch_size,
        notes=[
            failed_guard(),
            f"A new size took {new_shape:.2f} s to compile. What is timed comes after it: {LIMIT} entries "
            "are used up (torch's own limit is 8), and each further size runs uncompiled.",
            "With `fullgraph=True`, as the compiled modes have it, the limit raises instead.",
            *note,
        ],
    )


def _calls(
    probed: Probed, step: AnyStep, inputs: Iterator[Callable[[], StepArguments]]
) -> Callable[[], object]:
    """A call of `step` on the next of `inputs`."""

    def run() -> object:
        return step(*next(inputs)())  # the fault

    return probed.within(run)


_EPSILONS = ("epsilon", "variance_epsilon", "eps")


class _Norm(nn.Module):
    def __init__(self, kernel: Norm, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight = weight
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.weight, self.epsilon)  # the fault


def custom_op(probed: Probed, report: Report) -> FaultComparison:
    """The last norm through a custom kernel: as a registered operator, and as a plain function."""
    kernel = rms_norm_operator()
    plain = torch.compiler.disable(kernel)
    registered, unregistered = _with_norm(probed, kernel), _with_norm(probed, plain)
    return _compare_breaks(probed, registered, unregistered, _Norm.forward, report, [])


def _with_norm(probed: Probed, kernel: Norm) -> nn.Module:
    """A copy of the model whose last RMS norm runs `kernel`. Raises StudyError where it has none."""
    model: nn.Module = probed.copy()
    norms = [(name, module) for name, module in model.named_modules() if "RMSNorm" in type(module).__name__]
    if not norms:
        raise StudyError("unsupported_here", "this probe replaces an RMS norm, and this model has none")
    name, norm = norms[-1]
    weight = norm.get_parameter("weight")
    given = next((getattr(norm, known) for known in _EPSILONS if hasattr(norm, known)), None)
    epsilon = torch.finfo(weight.dtype).eps if given is None else float(given)  # as of torch.nn.RMSNorm
    parent, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(parent), own_name, _Norm(kernel, weight, epsilon))
    return model
