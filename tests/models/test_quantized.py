"""Linear layers with int8 weights: what they compute, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.quantized import LARGEST, Int8Linear, quantize
from models.transformer import Transformer
from tests.support.small_models import CONFIG, greedy


def test_each_weight_is_off_by_at_most_half_a_step_of_its_row() -> None:
    linear = nn.Linear(24, 40, bias=False)
    with torch.no_grad():
        linear.weight[3] *= 100
        linear.weight[5] = 0
    layer = Int8Linear(linear)
    assert layer.weight.dtype == torch.int8
    assert layer.weight.abs().max() == LARGEST
    kept = layer.weight.float() * layer.scales.unsqueeze(1)
    steps = linear.weight.detach().abs().amax(dim=1, keepdim=True) / LARGEST
    assert ((kept - linear.weight).abs() <= steps * 0.501).all()
    x = torch.randn(5, 24)
    torch.testing.assert_close(layer(x), x @ kept.t())


def test_a_layer_with_a_bias_is_refused() -> None:
    with pytest.raises(ValueError, match="without a bias"):
        quantize(nn.Sequential(nn.Linear(8, 8)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_quantized_decoder_computes_nearly_what_it_did(dtype: torch.dtype) -> None:
    """Its embedding stays, though the head that it was tied to does not."""
    model = Transformer(CONFIG, max_batch=2, seed=1).to(dtype)
    _, before = greedy(model, [[3, 4, 5], [6]], 3)
    assert quantize(model) is model
    assert model.embedding.weight.dtype == dtype
    assert not [module for module in model.modules() if isinstance(module, nn.Linear)]
    _, after = greedy(model, [[3, 4, 5], [6]], 3)
    assert not torch.equal(before, after)
    assert (before - after).abs().max() < 0.1 * before.abs().max()
