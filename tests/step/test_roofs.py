"""What a step must move and compute, what the machine can, and the device's own time of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
import torch

from models.config import Config
from models.transformer import Transformer
from service.statistics.intervals import Interval
from service.step import roofs
from service.step.buffers import allocate
from service.step.device_time import MOST_HOLD_SECONDS, SAMPLES, CudaQueue, queued_time
from tests.support.fake_cuda import FakeDevice

CONFIG = Config(layers=2, width=32, heads=4, kv_heads=2, head_width=8, hidden=64, vocabulary=128, context=64)
BLOCK = 32 * (4 + 2 * 2) * 8 + 32 * 32 + 32 * 2 * 64 + 64 * 32
HEAD = 32 * 128


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_are_those_of_the_shapes(dtype: torch.dtype, size: int) -> None:
    model = Transformer(CONFIG, max_batch=2).eval().to(dtype)
    found = roofs.step_bytes(model, allocate(model, [1, 2], 16)[2])
    assert found.weights == size * (2 * BLOCK + HEAD)
    assert found.cache_per_position == size * 2 * 2 * 2 * 8
    per_block = (32 + 64) + (32 + 32) + (32 + 128) + (64 + 32)
    assert found.activations_per_row == size * (2 * per_block + 32 + 128)
    of_its_own_dtype = roofs.step_bytes(model, allocate(model, [1], 16, torch.float32)[1])
    assert of_its_own_dtype.cache_per_position == 4 * 2 * 2 * 2 * 8


def test_operations_are_two_per_weight_and_those_of_attention() -> None:
    found = roofs.step_flops(Transformer(CONFIG, max_batch=1).eval())
    assert found.per_row == 2 * (2 * BLOCK + HEAD)
    scores, mixed = 2 * 4 * 8, 2 * 4 * 8  # of 4 heads of width 8, for each of 2 layers
    assert found.per_position == 2 * (scores + mixed)


@pytest.mark.parametrize(
    ("weights", "buffer"),
    [(1, roofs.LEAST_BYTES), (3 * roofs.LEAST_BYTES, 3 * roofs.LEAST_BYTES), (2**40, roofs.MOST_BYTES)],
)
def test_the_buffer_is_as_large_as_the_weights_within_bounds(
    weights: int, buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("service.step.roofs._read", lambda size: float(sizes.append(size) or 1e9))
    found = roofs.memory_bandwidth(torch.device("cpu"), weights)
    assert (found.kind, found.buffer_bytes, sizes) == ("read", buffer, [buffer])


# The device's own time of a step by queued calls: true where the queue lay ready, else an upper bound


def measured(device: FakeDevice) -> tuple[Interval, int, bool]:
    """Seconds per call, calls in a queue, and whether the device may have waited."""
    return queued_time(cast(CudaQueue, device), device.call, device.clock)


@pytest.mark.parametrize(("issue_seconds", "launches", "ahead"), [(10e-6, 1, 16), (500e-6, 200, 4)])
def test_as_many_calls_are_queued_as_the_driver_takes_ahead_and_take_what_the_device_takes(
    issue_seconds: float, launches: int, ahead: int
) -> None:
    found = measured(FakeDevice(issue_seconds=issue_seconds, step_seconds=100e-6, launches=launches))
    seconds, queued, upper_bound = found
    assert (seconds.value, seconds.low, seconds.high) == pytest.approx((100e-6,) * 3)
    assert (queued, seconds.samples, upper_bound) == (ahead, SAMPLES, False)


def test_where_not_even_one_call_can_be_queued_ahead_the_result_is_an_upper_bound_and_says_so() -> None:
    seconds, _, upper_bound = measured(FakeDevice(issue_seconds=2 * MOST_HOLD_SECONDS, step_seconds=0.1))
    assert upper_bound
    assert seconds.value > 0.1


@pytest.mark.parametrize(("late", "exact"), [((2, 5), True), (range(6), False)])
def test_samples_in_which_the_device_caught_up_are_left_out_as_long_as_enough_remain(
    late: Sequence[int], exact: bool
) -> None:
    hiccups = frozenset(4 + 16 + 16 * number + 3 for number in late)
    seconds, _, upper_bound = measured(FakeDevice(10e-6, 100e-6, hiccups=hiccups))
    assert (seconds.samples, upper_bound) == (SAMPLES - 2 * exact, not exact)
    assert seconds.high == pytest.approx(100e-6) if exact else seconds.value > 100e-6
