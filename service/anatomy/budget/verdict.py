"""The dispatch budget as arithmetic: operators times microseconds each, against kernel microseconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from service.boundedness import Bound, bound, device_bound_index

Source = Literal["measured", "given"]

_HELP: dict[Bound, str] = {
    "launch-bound": "yes",
    "balanced": "some",
    "kernel-bound": "little by removing dispatch; only fused kernels, which move less memory, could do more",
}


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the budget, and whether it was measured here or given by whoever asked."""

    value: float
    source: Source


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A step of `mode` as a sum: dispatch is operators × microseconds per operator, and kernels are the rest.

    `at_most_speedup` is how many times as fast a step would be with no dispatch at all (None: no kernel, so
    no bound). `will_compile_help` says it in words.
    """

    mode: str
    batch_size: int
    ops_per_step: Quantity
    microseconds_per_op: Quantity
    kernel_microseconds: Quantity
    dispatch_microseconds: float
    device_bound_index: float
    bound: Bound
    at_most_speedup: float | None
    will_compile_help: str


def judge(
    mode: str, batch_size: int, ops_per_step: Quantity, microseconds_per_op: Quantity,
    kernel_microseconds: Quantity,
) -> Budget:  # fmt: skip
    """The budget of these three quantities. Raises ValueError where dispatch and kernels are both nothing."""
    dispatch, kernel = ops_per_step.value * microseconds_per_op.value, kernel_microseconds.value
    index = device_bound_index(kernel, dispatch)
    word = bound(index)
    if index is None or word is None:
        raise ValueError("a step without dispatch and without kernels has no budget")
    at_most = (kernel + dispatch) / kernel if kernel > 0 else None
    return Budget(
        mode=mode, batch_size=batch_size, ops_per_step=ops_per_step, microseconds_per_op=microseconds_per_op,
        kernel_microseconds=kernel_microseconds, dispatch_microseconds=dispatch, device_bound_index=index,
        bound=word, at_most_speedup=at_most, will_compile_help=_words(word, 1 - index, at_most),
    )  # fmt: skip


def _words(word: Bound, share: float, at_most: float | None) -> str:
    limit = "without a limit from kernels" if at_most is None else f"at most {at_most:.3g} times as fast"
    return f"{_HELP[word]}: {share:.0%} of the step is dispatch; without any it would be {limit}"
