"""What a decode step must move, and the bandwidth of the memory that it moves it through."""

from __future__ import annotations

import pytest
import torch

from models.config import Config
from models.transformer import Transformer
from service.step.buffers import allocate
from service.step.roofs import LEAST_BYTES, MOST_BYTES, matrix_rate, memory_bandwidth, step_bytes, step_flops

CONFIG = Config(layers=2, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=128, context=64)
BLOCK = 32 * (4 + 2 * 2) * 8 + 32 * 32 + 32 * 2 * 64 + 64 * 32
HEAD = 32 * 128


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_are_those_of_the_shapes(dtype: torch.dtype, size: int) -> None:
    model = Transformer(CONFIG, max_batch=2).eval().to(dtype)
    found = step_bytes(model, allocate(model, [1, 2], 16)[2])
    assert found.weights == size * (2 * BLOCK + HEAD)
    assert found.cache_per_position == size * 2 * 2 * 2 * 8
    per_block = (32 + 64) + (32 + 32) + (32 + 128) + (64 + 32)
    assert found.activations_per_row == size * (2 * per_block + 32 + 128)


def test_operations_are_two_per_weight_and_those_of_attention() -> None:
    found = step_flops(Transformer(CONFIG, max_batch=1).eval())
    assert found.per_row == 2 * (2 * BLOCK + HEAD)
    scores, mixed = 2 * 4 * 8, 2 * 4 * 8  # of 4 heads of width 8, for each of 2 layers
    assert found.per_position == 2 * (scores + mixed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rate_of_products_is_that_of_the_dtype(dtype: torch.dtype) -> None:
    found = matrix_rate(torch.device("cpu"), dtype)
    assert found.flops_per_second > 1e8


def test_a_cache_of_its_own_dtype_counts_in_that() -> None:
    model = Transformer(CONFIG, max_batch=1).eval()
    found = step_bytes(model, allocate(model, [1], 16, torch.bfloat16)[1])
    assert found.cache_per_position == 2 * 2 * 2 * 2 * 8


@pytest.mark.parametrize(
    ("weights", "buffer"), [(1, LEAST_BYTES), (3 * LEAST_BYTES, 3 * LEAST_BYTES), (2**40, MOST_BYTES)]
)
def test_the_buffer_is_as_large_as_the_weights_within_bounds(
    weights: int, buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("service.step.roofs._read", lambda size: float(sizes.append(size) or 1e9))
    found = memory_bandwidth(torch.device("cpu"), weights)
    assert (found.kind, found.buffer_bytes, sizes) == ("read", buffer, [buffer])


def test_reading_has_a_rate() -> None:
    assert memory_bandwidth(torch.device("cpu"), LEAST_BYTES).bytes_per_second > 0
