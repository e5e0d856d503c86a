"""Layouts of linear weights: where they lie, and that nothing else changes."""

from __future__ import annotations

import torch
from torch import Tensor

from models.config import Config
from models.served import laid_out, lay_out, layout_of, linears
from models.transformer import Transformer, new_cache

CONFIG = Config(layers=2, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=64, context=32)


def made() -> Transformer:
    return Transformer(CONFIG, max_batch=2, seed=3).eval()


def logits(model: Transformer) -> Tensor:
    cache = new_cache(CONFIG, 2, torch.device("cpu"), torch.float32)
    tokens = torch.arange(16).view(2, 8)
    with torch.no_grad():
        result: Tensor = model(tokens, torch.zeros(2, dtype=torch.int64), torch.full((2,), 7), cache)[0]
    return result


def test_a_transposed_weight_has_its_shape_and_values_in_another_order() -> None:
    weight = torch.arange(6.0).view(2, 3)
    moved = laid_out(weight, "transposed")
    assert torch.equal(moved, weight)
    assert (moved.stride(), laid_out(moved, "aten").stride()) == ((1, 2), (3, 1))


def test_all_linear_layers_are_laid_out_and_compute_the_same() -> None:
    model = lay_out(made(), "transposed")
    assert {linear.weight.stride(0) for linear in linears(model)} == {1}
    assert layout_of(model) == "transposed"
    torch.testing.assert_close(logits(model), logits(made()))
    assert layout_of(lay_out(model, "aten")) == "aten"
    assert torch.equal(logits(model), logits(made()))


def test_an_embedding_keeps_its_rows_where_it_shared_them_with_the_head() -> None:
    model = made()
    assert model.head.weight is model.embedding.weight
    lay_out(model, "transposed")
    assert model.embedding.weight.is_contiguous()
    assert torch.equal(model.head.weight, model.embedding.weight)


def test_weights_still_require_grad_so_that_eager_records_a_tape() -> None:
    assert all(parameter.requires_grad for parameter in lay_out(made(), "transposed").parameters())
