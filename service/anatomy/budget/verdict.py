"""The dispatch budget: operators × microseconds per operator, against kernel microseconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from service.statistics.boundedness import Bound, bound, device_bound_index

Source = Literal["measured", "sampled", "given"]

_HELP: dict[Bound, str] = {
    "launch-bound": "yes",
    "balanced": "some",
    "kernel-bound": "little by removing dispatch; only fused kernels, which move less memory, could do more",
}


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the budget and its source.

    `measured` here, or `given` in the arguments. On a CPU microseconds per operator and kernels are
    `sampled`: shares of the step.
    """

    value: float
    source: Source


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A step of `mode`: dispatch is operators × microseconds per operator, against kernels.

    `without_dispatch_speedup` is how many times as fast a step with these kernels would be without dispatch
    (None: no kernel); on a CPU that is the headroom. Compiling can gain more, because it also shortens
    kernels. `device_bound_index` is the kernel share, and `bound` its class, a GPU's term.
    `will_compile_help` is a sentence about it.
    """

    mode: str
    batch_size: int
    ops_per_step: Quantity
    microseconds_per_op: Quantity
    kernel_microseconds: Quantity
    dispatch_microseconds: float
    device_bound_index: float
    bound: Bound
    without_dispatch_speedup: float | None
    will_compile_help: str


def step_of(dispatch: float, kernel: float, device: str) -> float:
    """Length of a step, in the unit of both: the sum on a CPU, the longer on CUDA, where they overlap."""
    return dispatch + kernel if device == "cpu" else max(dispatch, kernel)


def without_dispatch(step: float, kernel: float, left: float = 0.0) -> float:
    """How many times as fast a step is if `left` is all that remains of its dispatch.

    Raises ZeroDivisionError where neither kernels nor dispatch would remain.
    """
    return max(1.0, step / (kernel + left))


def make_budget(
    mode: str,
    batch_size: int,
    ops_per_step: Quantity,
    microseconds_per_op: Quantity,
    kernel_microseconds: Quantity,
    *,
    device: str = "cpu",
    step_microseconds: float | None = None,
) -> Budget:
    """The budget of these three quantities. Raises ValueError where dispatch and kernels are both 0.

    On a CPU the step is dispatch + kernels. On CUDA the two overlap, and the step is `step_microseconds`, or
    without it the longer of the two.
    """
    dispatch = ops_per_step.value * microseconds_per_op.value
    kernel = kernel_microseconds.value
    index = device_bound_index(kernel, dispatch)
    word = bound(index)
    if index is None or word is None:
        raise ValueError("a step without dispatch and without kernels has no budget")
    timed = None if device == "cpu" else step_microseconds
    step = step_of(dispatch, kernel, device) if timed is None else timed
    speedup = without_dispatch(step, kernel) if kernel > 0 else None
    return Budget(
        mode=mode,
        batch_size=batch_size,
        ops_per_step=ops_per_step,
        microseconds_per_op=microseconds_per_op,
        kernel_microseconds=kernel_microseconds,
        dispatch_microseconds=dispatch,
        device_bound_index=index,
        bound=word,
        without_dispatch_speedup=speedup,
        will_compile_help=f"{_HELP[word]}: {_share(1 - index, device)}; {_gain(speedup)}",
    )


def _share(share: float, device: str) -> str:
    if device != "cpu":
        return f"dispatch is {share:.0%} of dispatch + kernel, which overlap"
    return f"{share:.0%} of the step is dispatch"


def _gain(speedup: float | None) -> str:
    if speedup is None:
        return "this step has no kernels: without dispatch it would take no time"
    return f"without dispatch it would be about {speedup:.3g} times as fast, with the same kernels"
