"""On CUDA one compilation serves every length: traced with fake tensors to where Inductor guards on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.nn import functional as F

from service.modes import MODES
from service.records import Phase
from service.step import buffers
from service.step.buffers import allocate, make_symbolic
from service.step.callables import build_step
from tests.support.fake_lowering import Lowering, bfloat16_model, fake_cuda
from tests.support.small_models import CONFIG

pytestmark = pytest.mark.compiles

CONTEXT = 512
"""Of a model whose attention reads 64 to 512 positions."""

CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention.default
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
"""What CUDA can choose with our mask, which excludes flash attention; an H100 chooses cuDNN in bfloat16."""


def lower(
    monkeypatch: pytest.MonkeyPatch,
    operator: Callable[..., Any],
    phase: Phase,
    batch: int,
    context: int = CONTEXT,
) -> tuple[Lowering, int]:
    """Call a step of `compiled` in all its shapes; what was lowered, and how many shapes there are."""

    def attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor) -> Tensor:
        result: Tensor = operator(q, k, v, attn_mask, False)[0]
        return result

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    lowering = Lowering()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=lowering))
    with fake_cuda(monkeypatch):
        model = bfloat16_model(replace(CONFIG, context=context), batch)
        step = build_step(MODES["compiled"], model)
        shapes = list(allocate(model, [batch], prefill_chunk=64)[batch].shapes(phase))
        for arguments in shapes:
            step(*arguments)
    assert operator in lowering.operators
    return lowering, len(shapes)


@pytest.mark.parametrize("operator", [CUDNN, EFFICIENT])
@pytest.mark.parametrize(("phase", "shapes"), [("decode", 4), ("prefill", 12)])
def test_one_compilation_serves_every_length(
    operator: Callable[..., Any], phase: Phase, shapes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowering, called = lower(monkeypatch, operator, phase, 8)
    assert called == shapes
    (guards,) = lowering.guards
    assert any("Mod" in guard and ", 8)" in guard for guard in guards)


def test_batch_1_has_no_guard_on_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    lowering, _ = lower(monkeypatch, CUDNN, "decode", 1)
    (guards,) = lowering.guards
    assert not any("Mod" in guard for guard in guards)


def test_a_context_that_is_no_multiple_of_8_is_compiled_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    lowering, called = lower(monkeypatch, CUDNN, "decode", 8, context=500)
    assert called == 4
    assert len(lowering.guards) == 2


def test_an_enforced_mark_refuses_what_inductor_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    def enforced(tensor: Tensor, sizes: list[int], enforced: bool) -> None:
        assert not enforced
        make_symbolic(tensor, sizes, enforced=True)

    monkeypatch.setattr(buffers, "make_symbolic", enforced)
    with pytest.raises(ConstraintViolationError, match=r"64 <= .* <= 512 satisfy the generated guard .*% 8"):
        lower(monkeypatch, CUDNN, "decode", 8)
