"""The tolerance of parity, which grows with the logits, and the verdicts that it gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.config import Config
from models.served import Cache
from models.transformer import Transformer
from service.modes import MODES
from service.step.buffers import allocate
from service.step.callables import build_step
from service.step.parity import DECODE_STEPS, PREFILL_STEPS, compare, forced_logits, tolerance

CONFIG = Config(layers=1, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=64, context=128)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tolerance_grows_with_the_logits_and_never_falls_below_that_of_logits_of_one(
    dtype: torch.dtype,
) -> None:
    at_ten = tolerance(dtype, 6, 10.0)
    assert tolerance(dtype, 6, 100.0) == pytest.approx(10 * at_ten)
    assert tolerance(dtype, 6, 0.01) == tolerance(dtype, 6, 1.0) == pytest.approx(at_ten / 10)


def test_float32_is_held_to_a_hundred_thousandth_of_the_largest_logit() -> None:
    assert tolerance(torch.float32, 6, 20.0) == pytest.approx(2e-4)
    assert tolerance(torch.float32, 60, 20.0) == tolerance(torch.float32, 6, 20.0)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_the_same_relative_error_has_the_same_verdict_at_every_scale(scale: float) -> None:
    reference = torch.linspace(-1, 1, 64).view(1, 1, 64) * scale
    assert compare(reference, reference * (1 + 5e-6), layers=6).passed
    assert not compare(reference, reference * (1 + 5e-5), layers=6).passed


def test_a_mode_that_computes_no_number_is_out_of_parity() -> None:
    reference = torch.linspace(-1, 1, 64).view(1, 1, 64)
    assert not compare(reference, reference * float("nan"), layers=6).passed


def test_a_prefill_that_serves_the_longest_chunk_only_is_out_of_parity() -> None:
    model = Transformer(CONFIG, max_batch=2, seed=3).eval()
    buffers = allocate(model, [2], prefill_chunk=64)[2]
    eager = build_step(MODES["eager"], model)

    def of_one_length(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        logits, greedy = eager(tokens, positions, last, cache)
        return (logits if tokens.shape[1] == buffers.chunk_length else logits + 1), greedy

    reference = forced_logits(eager, eager, buffers, CONFIG.vocabulary)
    found = forced_logits(of_one_length, eager, buffers, CONFIG.vocabulary)
    assert len(found) == PREFILL_STEPS + DECODE_STEPS
    assert not compare(reference, found, CONFIG.layers).passed
    assert torch.equal(found[1:], reference[1:])
