"""Attention beside its reference: what was chosen, and that a kernel wrong in every mode is found."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.config import Config
from models.transformer import Transformer
from service.modes import MODES
from service.records import Attention
from service.step import parity
from service.step.buffers import Buffers, allocate
from service.step.callables import Step, build_step
from service.step.parity import (
    REFERENCE,
    ReferenceAttention,
    backend_name,
    check_attention,
    forced_logits,
    wrong_attention,
)

CONFIG = Config(layers=2, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=64, context=128)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIG, max_batch=2, seed=3).eval()


@pytest.fixture(scope="module")
def buffers(model: Transformer) -> dict[int, Buffers]:
    return allocate(model, [1, 2], prefill_chunk=32)


def logits_of(step: Step, buffers: Mapping[int, Buffers]) -> dict[int, Tensor]:
    return {bucket: forced_logits(step, step, own, CONFIG.vocabulary) for bucket, own in buffers.items()}


def checked(step: Step, buffers: dict[int, Buffers]) -> list[Attention]:
    return check_attention(step, buffers, logits_of(step, buffers), CONFIG)


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
    assert wrong_attention(found) is None


def test_the_reference_really_runs_other_operators() -> None:
    q = torch.randn(1, 2, 4, 8)
    with torch.profiler.profile() as plain:
        F.scaled_dot_product_attention(q, q, q)
    with torch.profiler.profile() as under, ReferenceAttention() as mode:
        F.scaled_dot_product_attention(q, q, q)
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert flash in {event.key for event in plain.key_averages()}
    assert flash not in {event.key for event in under.key_averages()}
    assert mode.chosen == {"flash_attention"}


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
    found = check_attention(build_step(MODES["eager"], model), buffers, reference, CONFIG)
    assert not any(one.parity and one.parity.passed for one in found)
    reason = wrong_attention(found)
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


def test_the_reference_is_not_compared_with_itself(
    model: Transformer, buffers: dict[int, Buffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "backend_name", lambda choice: REFERENCE)
    for one in checked(build_step(MODES["eager"], model), buffers):
        assert one.parity is None
        assert one.unchecked == "torch chose the reference itself"


def test_a_reference_that_runs_out_of_memory_leaves_the_check_out_and_says_so(
    model: Transformer, buffers: dict[int, Buffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = build_step(MODES["eager"], model)
    reference = logits_of(step, buffers)

    def fail(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(parity, "forced_logits", fail)
    found = check_attention(step, buffers, reference, CONFIG)
    assert all("CUDA out of memory" in (one.unchecked or "") for one in found)
    assert wrong_attention(found) is None


def test_what_loses_the_device_passes_through(
    model: Transformer, buffers: dict[int, Buffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Tensor:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    step = build_step(MODES["eager"], model)
    reference = logits_of(step, buffers)
    monkeypatch.setattr(parity, "forced_logits", fail)
    with pytest.raises(torch.AcceleratorError):
        check_attention(step, buffers, reference, CONFIG)


def test_backends_have_the_names_of_torchs_enumeration() -> None:
    assert backend_name(int(torch.nn.attention.SDPBackend.MATH)) == REFERENCE
    assert backend_name(int(torch.nn.attention.SDPBackend.CUDNN_ATTENTION)) == "cudnn_attention"
