"""The same computation with grad mode off: which operators ran, and that autograd kept nothing of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import torch
from torch import Tensor

from service.anatomy.tape.graph import ForwardOperator, ForwardRecorder, hooked
from service.anatomy.tape.storages import Held, OwnerKind, Storages, held
from service.protocol.modes import GradMode

OFF: dict[GradMode, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


class UntapedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One computation under `grad`. `forward` are its operators, in order.

    `has_grad_fn`: whether its result has a tape behind it. `held` sums the tensors that autograd saved
    meanwhile, by saved-tensor hooks, in a second run.
    """

    grad: GradMode
    forward: list[ForwardOperator]
    has_grad_fn: bool
    held: Held


def run_untaped(
    run: Callable[[], Tensor], owned: list[tuple[OwnerKind, str, Tensor]], grad: GradMode
) -> UntapedRun:
    """Run it twice under `grad`, a key of `OFF`: recorded, and with saved-tensor hooks.

    Raises StudyError where the computation does not work in that grad mode.
    """
    with OFF[grad]():
        with ForwardRecorder() as recorder:
            result = run()
        saved = hooked(run, Storages(owned))
    return UntapedRun(
        grad=grad,
        forward=[operator for operator, _ in recorder.seen],
        has_grad_fn=result.grad_fn is not None,
        held=held(saved),
    )
