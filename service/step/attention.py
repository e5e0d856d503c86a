"""Which attention kernels torch chooses for a step, and whether they compute what attention is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from models.served import Sizes
from service.records import PHASES, Attention
from service.step.buffers import Buffers
from service.step.callables import Step
from service.step.device_errors import free_memory, is_device_lost
from service.step.parity import PREFILL_STEPS, compare, forced_logits

REFERENCE = "math"
"""The backend that consists of plain operators; by the name that `backend_name` gives it."""


class ReferenceAttention(TorchFunctionMode):
    """Within: `scaled_dot_product_attention` runs the reference; `chosen` names what it would have run."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: set[str] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever any function of torch returns
        """Called for every function of torch; all but one run as they are."""
        options = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **options)
        self.chosen.add(backend_name(torch._fused_sdp_choice(*args, **options)))
        with sdpa_kernel(SDPBackend.MATH):
            return func(*args, **options)


def backend_name(choice: int) -> str:
    """The name of one of torch's SDPBackend: `math`, `flash_attention`, `efficient_attention`, …"""
    return str(SDPBackend(choice).name).lower()


def check_attention(
    eager: Step, buffers: Mapping[int, Buffers], reference: Mapping[int, Tensor], sizes: Sizes
) -> list[Attention]:
    """Per phase and bucket: what `eager` runs, and its logits beside those with the reference attention.

    `reference` has by bucket the logits of `eager` as it is, as `forced_logits` gives them.
    """
    found = []
    for bucket, own in buffers.items():
        modes = ReferenceAttention(), ReferenceAttention()
        logits, failed = _with_reference(eager, own, modes, sizes)
        of_phases = slice(0, PREFILL_STEPS), slice(PREFILL_STEPS, None)
        for phase, mode, steps in zip(PHASES, modes, of_phases, strict=True):
            verdict = None
            unchecked = failed or _nothing_to_compare(mode.chosen)
            if unchecked is None and logits is not None:
                verdict = compare(logits[steps], reference[bucket][steps], sizes.layers)
            found.append(
                Attention(
                    phase=phase,
                    batch=bucket,
                    backends=sorted(mode.chosen),
                    parity=verdict,
                    unchecked=unchecked,
                )
            )
    return found


def _with_reference(
    eager: Step, own: Buffers, modes: tuple[ReferenceAttention, ReferenceAttention], sizes: Sizes
) -> tuple[Tensor | None, str | None]:
    """The logits with the reference attention; or None, and why. `modes` are those of prefill and decode."""
    try:
        prefill, decode = (_inside(mode, eager) for mode in modes)
        return forced_logits(prefill, decode, own, sizes.vocabulary), None
    except RuntimeError as error:
        if is_device_lost(error):
            raise
        # The reference keeps all scores, and so can run out of memory where no mode does.
        reason = f"the reference failed: {error}"[:500]
        free_memory(error)
        return None, reason


def _nothing_to_compare(chosen: set[str]) -> str | None:
    if not chosen:
        return "the model does not call scaled_dot_product_attention"
    return "torch chose the reference itself" if chosen == {REFERENCE} else None


def wrong_attention(found: Sequence[Attention]) -> str | None:
    """Which attention differs from the reference, and what to do; None where none does."""
    wrong = [
        f"{' and '.join(one.backends)} in {one.phase} at batch {one.batch} "
        f"({one.parity.max_abs_logit_difference:.1e}, {one.parity.tolerance:.1e} allowed)"
        for one in found
        if one.parity is not None and not one.parity.passed
    ]
    if not wrong:
        return None
    return (
        f"attention differs from its reference, in every mode alike: {'; '.join(wrong)}; "
        "serve another dtype, or another build of torch"
    )


def _inside(mode: ReferenceAttention, step: Step) -> Step:
    def inside(*arguments: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 - those of any step
        with mode:
            return step(*arguments)

    return inside
