"""Parity: a mode's logits against those of eager, and eager's attention against the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from models.served import Served, Sizes
from service.records import PHASES, Attention, Parity, Phase
from service.step.buffers import Buffers
from service.step.callables import Step
from service.step.device import free_memory, is_device_lost, is_out_of_memory

PREFILL_STEPS = 2
"""With the shortest chunk and with the longest: a callable that serves one length only shows it here."""

DECODE_STEPS = 8


def tolerance(dtype: torch.dtype, layers: int, largest_logit: float) -> float:
    """Largest absolute logit difference that rounding can cause, relative to the logits' scale, at least 1.

    float32: 1e-5, more than a hundred units roundoff (2⁻²⁴), because products sum in another order, and their
    roundings add up over a row. bfloat16: rounding errors of one unit roundoff u = 2⁻⁸ each, taken as a
    random walk over the four roundings per layer that touch the residual stream, `u · √(4 · layers)`: fused
    kernels keep intermediates in float32 where eager rounds each of them.
    """
    scale = max(largest_logit, 1.0)
    return scale * (1e-5 if dtype == torch.float32 else 2**-8 * math.sqrt(4 * layers))


def forced_logits(prefill: Step, decode: Step, buffers: Buffers, vocabulary: int) -> Tensor:
    """Logits [PREFILL_STEPS + DECODE_STEPS, bucket, vocabulary] of a fixed ragged batch, teacher-forced: the
    same tokens are fed whatever the logits are. Decode goes on from the last prefill, of the longest chunk.
    Cloned, because a graph replay overwrites the outputs of the one before.
    """
    bucket, chunk = buffers.bucket, buffers.chunk_length
    generator = torch.Generator().manual_seed(bucket)
    tokens = torch.randint(vocabulary, (bucket, chunk + DECODE_STEPS), generator=generator)
    lengths = torch.randint(1, chunk + 1, (bucket,), generator=generator)
    logits = []
    for length in (min(buffers.chunks), chunk):
        arguments = buffers.arguments("prefill", length)
        arguments[0].copy_(tokens[:, :length])
        buffers.positions.zero_()
        buffers.last.copy_(lengths.clamp(max=length) - 1)
        logits.append(prefill(*arguments)[0].clone())
    buffers.positions.copy_(lengths)
    buffers.last.zero_()
    arguments = buffers.arguments("decode", reach=buffers.reach(chunk + DECODE_STEPS))
    for step in range(DECODE_STEPS):
        buffers.token.copy_(tokens[:, chunk + step : chunk + step + 1])
        logits.append(decode(*arguments)[0].clone())
        buffers.positions.add_(1)
    return torch.stack(logits)


def compare(reference: Tensor, logits: Tensor, layers: int) -> Parity:
    """Compare `logits` with eager's `reference`, both [steps, batch, vocabulary]. A greedy token may differ
    only where the reference's top two logits are closer than twice the tolerance.
    """
    limit = tolerance(reference.dtype, layers, float(reference.abs().max()))
    difference = float((reference.float() - logits.float()).abs().max())
    top = reference.float().topk(2, dim=-1).values
    differs = logits.argmax(dim=-1) != reference.argmax(dim=-1)
    near = (top[..., 0] - top[..., 1]) < 2 * limit
    differing = int((differs & ~near).sum())
    return Parity(
        # `<=` is False for NaN, so a mode that computes NaN is out of parity.
        passed=bool(difference <= limit) and differing == 0,
        max_abs_logit_difference=difference,
        tolerance=limit,
        positions=differs.numel(),
        differing_tokens=differing,
        near_ties=int((differs & near).sum()),
    )


def worst(verdicts: list[Parity]) -> Parity:
    """One verdict over all buckets: the largest difference, and every count added up."""
    furthest = max(verdicts, key=lambda verdict: verdict.max_abs_logit_difference)
    return Parity(
        passed=all(verdict.passed for verdict in verdicts),
        max_abs_logit_difference=furthest.max_abs_logit_difference,
        tolerance=furthest.tolerance,
        positions=sum(verdict.positions for verdict in verdicts),
        differing_tokens=sum(verdict.differing_tokens for verdict in verdicts),
        near_ties=sum(verdict.near_ties for verdict in verdicts),
    )


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
        options = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **options)
        self.chosen.add(backend_name(torch._fused_sdp_choice(*args, **options)))
        with sdpa_kernel(SDPBackend.MATH):
            return func(*args, **options)


def backend_name(choice: int) -> str:
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
            verdict, unchecked = None, failed
            if not mode.chosen:
                unchecked = failed or "the model does not call scaled_dot_product_attention"
            elif mode.chosen == {REFERENCE}:
                unchecked = failed or "torch chose the reference itself"
            elif logits is not None:
                verdict = compare(logits[steps], reference[bucket][steps], sizes.layers)
            backends = sorted(mode.chosen)
            found.append(
                Attention(phase=phase, batch=bucket, backends=backends, parity=verdict, unchecked=unchecked)
            )
    return found


def _with_reference(
    eager: Step, own: Buffers, modes: tuple[ReferenceAttention, ReferenceAttention], sizes: Sizes
) -> tuple[Tensor | None, str | None]:
    """The logits with the reference attention; or None, and why. `modes` are those of prefill and decode."""

    def inside(mode: ReferenceAttention) -> Step:
        def step(*arguments: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 - those of any step
            with mode:
                return eager(*arguments)

        return step

    try:
        return forced_logits(inside(modes[0]), inside(modes[1]), own, sizes.vocabulary), None
    except RuntimeError as error:
        if is_device_lost(error):
            raise
        # The reference keeps all scores, and so can run out of memory where no mode does.
        reason = f"the reference failed: {error}"[:500]
        free_memory(error)
        return None, reason


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


OUT_OF_PARITY = "out of parity with eager: see `parity`"


class Unservable(ValueError):
    """A model that does not run even in eager; the message names its architecture and the remedy."""


class ParityCheck:
    """Compares a mode's logits with those of `eager`, its step, which are computed once per bucket.
    `attention` is what attention `eager` runs, its logits beside those of the reference attention. Raises
    Unservable where `eager` does not run.
    """

    def __init__(self, model: Served, buffers: dict[int, Buffers], eager: Step) -> None:
        self._config = model.config
        self._buffers = buffers
        try:
            self._reference = {bucket: self._logits(eager, eager, own) for bucket, own in buffers.items()}
            self.attention = check_attention(eager, buffers, self._reference, model.config)
        except Exception as error:
            if is_device_lost(error):
                raise
            where = f"at batch {max(buffers)}"
            message = (
                f"{model.architecture} cannot be served: its eager step failed {where} "
                f"({type(error).__name__}: {error}); serve another architecture, such as Llama, GPT-2 or Qwen"
            )
            if is_out_of_memory(error):
                message = (
                    f"{model.architecture} {where} needs more memory than there is ({error}): "
                    "set LAUNCHBOUND_BATCH_SIZES or LAUNCHBOUND_CONTEXT to less"
                )
            raise Unservable(message) from error

    def run(self, steps: Mapping[tuple[Phase, int], Step]) -> Parity:
        """The verdict on `steps`, by phase and bucket, over all buckets."""
        verdicts = []
        for bucket, buffers in self._buffers.items():
            logits = self._logits(steps["prefill", bucket], steps["decode", bucket], buffers)
            verdicts.append(compare(self._reference[bucket], logits, self._config.layers))
        return worst(verdicts)

    def wrong(self, verdict: Parity) -> str | None:
        """Why a mode of that verdict is not to be served; None where it is."""
        return wrong_attention(self.attention) if verdict.passed else OUT_OF_PARITY

    def _logits(self, prefill: Step, decode: Step, buffers: Buffers) -> Tensor:
        return forced_logits(prefill, decode, buffers, self._config.vocabulary)
