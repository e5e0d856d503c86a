"""What a step must move and compute, what the machine can, and the device's own time of a step."""

from __future__ import annotations

import pytest
import torch

from models.config import Config
from models.transformer import Transformer
from service.records import DeviceTime
from service.step import roofs
from service.step.buffers import allocate
from service.step.device_time import MOST_HOLD_SECONDS, SAMPLES, device_time
from service.step.trace import StepShape
from tests.support.fake_cuda import FakeDevice, pretend_graphs

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


CUDA = torch.device("cuda")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a CUDA device, on this machine's CPU."""
    zeros, ones = torch.zeros, torch.ones
    monkeypatch.setattr(torch, "zeros", lambda count, device: zeros(count))
    monkeypatch.setattr(torch, "ones", lambda count, device: ones(count))


@pytest.mark.usefixtures("pretended")
def test_the_hosts_launch_of_the_graph_is_no_part_of_a_kernel_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_graphs(
        monkeypatch, roofs, FakeDevice(issue_seconds=59e-6, step_seconds=roofs.KERNELS_PER_GRAPH * 1e-6)
    )
    found = roofs.measure_null_kernel(CUDA)
    assert found.seconds["in_graph"] == pytest.approx(1e-6)
    assert found.no_graph is None


@pytest.mark.usefixtures("pretended")
def test_where_the_device_waits_for_the_host_the_value_is_left_out_as_an_upper_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_graphs(monkeypatch, roofs, FakeDevice(issue_seconds=2 * MOST_HOLD_SECONDS, step_seconds=1e-4))
    found = roofs.measure_null_kernel(CUDA)
    assert set(found.seconds) == {"alone"}
    assert found.no_graph is not None
    assert found.no_graph.endswith("is only an upper bound")


@pytest.mark.usefixtures("pretended")
def test_a_capture_that_fails_leaves_the_value_out_with_its_reason_unless_the_device_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(device: torch.device) -> object:
        raise error

    error: RuntimeError = RuntimeError("capture is not permitted here")
    monkeypatch.setattr(roofs, "_in_graph", fail)
    found = roofs.measure_null_kernel(CUDA)
    assert set(found.seconds) == {"alone"}
    assert found.no_graph == "RuntimeError: capture is not permitted here"
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(torch.AcceleratorError):
        roofs.measure_null_kernel(CUDA)


# The device's own time of a step by queued calls: true where the queue lay ready, else an upper bound


def measured(device: FakeDevice) -> DeviceTime:
    return device_time(device, device.call, "decode", 4, StepShape(1, 64), device.clock)


def test_a_replay_is_queued_far_ahead_and_takes_what_the_device_takes() -> None:
    found = measured(FakeDevice(issue_seconds=10e-6, step_seconds=100e-6))
    assert found.seconds == pytest.approx(100e-6)
    assert (found.low, found.high) == pytest.approx((100e-6, 100e-6))
    assert (found.phase, found.batch, found.queued, found.samples) == ("decode", 4, 16, SAMPLES)
    assert (found.row_tokens, found.attended_tokens) == (1, 64)
    assert not found.upper_bound


def test_as_many_calls_are_queued_as_the_driver_takes_ahead() -> None:
    found = measured(FakeDevice(issue_seconds=500e-6, step_seconds=100e-6, launches=200))
    assert found.queued == 4
    assert found.seconds == pytest.approx(100e-6)
    assert not found.upper_bound


def test_where_not_even_one_call_can_be_queued_ahead_the_result_is_an_upper_bound_and_says_so() -> None:
    found = measured(FakeDevice(issue_seconds=2 * MOST_HOLD_SECONDS, step_seconds=0.1))
    assert found.upper_bound
    assert found.seconds > 0.1


def test_samples_in_which_the_device_caught_up_are_left_out_as_long_as_enough_remain() -> None:
    hiccups = frozenset({4 + 16 + 16 * number + 3 for number in (2, 5)})
    found = measured(FakeDevice(issue_seconds=10e-6, step_seconds=100e-6, hiccups=hiccups))
    assert (found.samples, found.upper_bound) == (SAMPLES - 2, False)
    assert found.high == pytest.approx(100e-6)
    every = frozenset({4 + 16 + 16 * number + 3 for number in range(6)})
    found = measured(FakeDevice(issue_seconds=10e-6, step_seconds=100e-6, hiccups=every))
    assert (found.samples, found.upper_bound) == (SAMPLES, True)
    assert found.seconds > 100e-6
