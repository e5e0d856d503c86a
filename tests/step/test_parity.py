"""Parity's tolerance and verdicts; attention beside its reference finds a kernel wrong in every mode."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.served import Cache
from models.transformer import Transformer
from service.modes import MODES
from service.records import Attention
from service.step import parity
from service.step.buffers import Buffers, allocate
from service.step.callables import Step, build_step
from service.step.parity import forced_logits
from tests.support.small_models import CONFIG


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tolerance_grows_with_the_logits_and_never_falls_below_that_of_logits_of_one(
    dtype: torch.dtype,
) -> None:
    at_ten = parity.tolerance(dtype, 6, 10.0)
    assert parity.tolerance(dtype, 6, 100.0) == pytest.approx(10 * at_ten)
    assert parity.tolerance(dtype, 6, 0.01) == parity.tolerance(dtype, 6, 1.0) == pytest.approx(at_ten / 10)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_the_same_relative_error_has_the_same_verdict_at_every_scale_and_nan_is_out(scale: float) -> None:
    reference = torch.linspace(-1, 1, 64).view(1, 1, 64) * scale
    assert parity.compare(reference, reference * (1 + 5e-6), layers=6).passed
    assert not parity.compare(reference, reference * (1 + 5e-5), layers=6).passed
    assert not parity.compare(reference, reference * float("nan"), layers=6).passed


def test_a_prefill_that_serves_the_longest_chunk_only_is_out_of_parity() -> None:
    model = Transformer(CONFIG, max_batch=2, seed=3).eval()
    buffers = allocate(model, [2], prefill_chunk=64)[2]
    eager = build_step(MODES["eager"], model)

    def of_one_length(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        logits, greedy = eager(tokens, positions, last, cache)
        return (logits if tokens.shape[1] == buffers.chunk_length else logits + 1), greedy

    reference = forced_logits(eager, eager, buffers, CONFIG.vocabulary)
    found = forced_logits(of_one_length, eager, buffers, CONFIG.vocabulary)
    assert len(found) == parity.PREFILL_STEPS + parity.DECODE_STEPS
    assert not parity.compare(reference, found, CONFIG.layers).passed
    assert torch.equal(found[1:], reference[1:])


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIG, max_batch=2, seed=3).eval()


@pytest.fixture(scope="module")
def buffers(model: Transformer) -> dict[int, Buffers]:
    return allocate(model, [1, 2], prefill_chunk=32)


def logits_of(step: Step, buffers: Mapping[int, Buffers]) -> dict[int, Tensor]:
    return {bucket: forced_logits(step, step, own, CONFIG.vocabulary) for bucket, own in buffers.items()}


def checked(step: Step, buffers: dict[int, Buffers]) -> list[Attention]:
    return parity.check_attention(step, buffers, logits_of(step, buffers), CONFIG)


def test_every_phase_and_batch_names_its_backend_and_equals_the_reference(
    model: Transformer, buffers: dict[int, Buffers]
) -> None:
    found = checked(build_step(MODES["eager"], model), buffers)
    assert [(one.phase, one.batch) for one in found] == [
        ("prefill", 1), ("decode", 1), ("prefill", 2), ("decode", 2),
    ]  # fmt: skip
    for one in found:
        assert one.backends == ["flash_attention"]
        assert one.parity is not None
        assert one.parity.passed
        assert one.unchecked is None
    assert parity.wrong_attention(found) is None


def test_attention_that_is_wrong_in_every_mode_alike_is_found(
    model: Transformer, buffers: dict[int, Buffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = F.scaled_dot_product_attention

    def wrong(*arguments: Tensor, **options: Tensor) -> Tensor:
        return right(*arguments, **options) * 1.5

    monkeypatch.setattr(F, "scaled_dot_product_attention", wrong)
    step = build_step(MODES["eager"], model)
    reference = logits_of(step, buffers)
    monkeypatch.setattr(F, "scaled_dot_product_attention", right)
    found = parity.check_attention(build_step(MODES["eager"], model), buffers, reference, CONFIG)
    assert not any(one.parity and one.parity.passed for one in found)
    reason = parity.wrong_attention(found)
    assert reason is not None
    assert "flash_attention in prefill at batch 1" in reason
    assert "serve another dtype" in reason


def test_a_model_without_torchs_attention_is_not_called_equal_to_it(buffers: dict[int, Buffers]) -> None:
    def step(tokens: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        logits = torch.zeros(tokens.shape[0], CONFIG.vocabulary)
        return logits, logits.argmax(dim=-1)

    for one in checked(step, buffers):
        assert one.parity is None
        assert one.backends == []
        assert "does not call" in (one.unchecked or "")


def test_a_reference_that_fails_leaves_the_check_out_and_says_so_unless_the_device_is_lost(
    model: Transformer, buffers: dict[int, Buffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = build_step(MODES["eager"], model)
    reference = logits_of(step, buffers)

    def fail(*_: object) -> Tensor:
        raise error

    error: Exception = torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(parity, "forced_logits", fail)
    found = parity.check_attention(step, buffers, reference, CONFIG)
    assert all("CUDA out of memory" in (one.unchecked or "") for one in found)
    assert parity.wrong_attention(found) is None
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(torch.AcceleratorError):
        parity.check_attention(step, buffers, reference, CONFIG)
