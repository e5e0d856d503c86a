"""Parity: a mode's logits compared with eager's, teacher-forced on fixed prompts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from service.records import Parity
from service.step.buffers import Buffers
from service.step.callables import Step

PREFILL_STEPS = 2
"""With the shortest chunk and with the longest: a callable that serves one length only shows it here."""

DECODE_STEPS = 8


def tolerance(dtype: torch.dtype, layers: int, largest_logit: float) -> float:
    """Largest absolute logit difference that rounding can cause.

    Both grow with the logits, whose scale is at least 1 here. float32: 1e-5 of it, more than a hundred units
    roundoff (2⁻²⁴), because products sum in another order, and their roundings add up over a row. bfloat16:
    rounding errors of one unit roundoff u = 2⁻⁸ each, taken as a random walk over the four roundings per
    layer that touch the residual stream, `u · √(4 · layers)`: fused kernels keep intermediates in float32
    where eager rounds each of them, and products sum in float32.
    """
    scale = max(largest_logit, 1.0)
    return scale * (1e-5 if dtype == torch.float32 else 2**-8 * math.sqrt(4 * layers))


def forced_logits(prefill: Step, decode: Step, buffers: Buffers, vocabulary: int) -> Tensor:
    """Logits [PREFILL_STEPS + DECODE_STEPS, bucket, vocabulary] of a fixed ragged batch, teacher-forced.

    The same tokens are fed whatever the logits are, so that one early difference cannot cascade. Decode goes
    on from the last prefill, which is of the longest chunk and writes over what the other left in the cache.
    """
    bucket, chunk = buffers.bucket, buffers.chunk_length
    generator = torch.Generator().manual_seed(bucket)
    tokens = torch.randint(vocabulary, (bucket, chunk + DECODE_STEPS), generator=generator)
    lengths = torch.randint(1, chunk + 1, (bucket,), generator=generator)
    logits = [
        _prefilled(prefill, buffers, tokens, lengths, length) for length in (min(buffers.chunks), chunk)
    ]
    buffers.positions.copy_(lengths)
    buffers.last.zero_()
    arguments = buffers.arguments("decode", reach=buffers.reach(chunk + DECODE_STEPS))
    for step in range(DECODE_STEPS):
        buffers.token.copy_(tokens[:, chunk + step : chunk + step + 1])
        logits.append(decode(*arguments)[0].clone())
        buffers.positions.add_(1)
    return torch.stack(logits)


def _prefilled(prefill: Step, buffers: Buffers, tokens: Tensor, lengths: Tensor, length: int) -> Tensor:
    """Logits [bucket, vocabulary] of a chunk of `length`, from the start of the cache.

    Each row ends behind its `lengths` tokens, or as many as fit. Cloned at once: a graph replay overwrites
    the outputs of the one before.
    """
    arguments = buffers.arguments("prefill", length)
    arguments[0].copy_(tokens[:, :length])
    buffers.positions.zero_()
    buffers.last.copy_(lengths.clamp(max=length) - 1)
    return prefill(*arguments)[0].clone()


def compare(reference: Tensor, logits: Tensor, layers: int) -> Parity:
    """Compare `logits` with eager's `reference`, both [steps, batch, vocabulary].

    A greedy token may differ only where the reference's top two logits are closer than twice the tolerance.
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
