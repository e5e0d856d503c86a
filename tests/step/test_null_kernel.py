"""The null kernel: the device's time alone, else absent with its reason, and never the engine's end."""

from __future__ import annotations

import pytest
import torch

from service.step import roofs
from service.step.device_time import MOST_HOLD_SECONDS
from service.step.roofs import KERNELS_PER_GRAPH, measure_null_kernel
from tests.support.fake_cuda import FakeDevice, pretend_graphs

CUDA = torch.device("cuda")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a CUDA device, on this machine's CPU."""
    zeros, ones = torch.zeros, torch.ones
    monkeypatch.setattr(torch, "zeros", lambda count, device: zeros(count))
    monkeypatch.setattr(torch, "ones", lambda count, device: ones(count))


@pytest.mark.usefixtures("pretended")
def test_the_hosts_launch_of_the_graph_is_no_part_of_a_kernel_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_graphs(monkeypatch, roofs, FakeDevice(issue_seconds=59e-6, step_seconds=KERNELS_PER_GRAPH * 1e-6))
    found = measure_null_kernel(CUDA)
    assert found.seconds["in_graph"] == pytest.approx(1e-6)
    assert found.no_graph is None


@pytest.mark.usefixtures("pretended")
def test_where_the_device_waits_for_the_host_the_value_is_left_out_as_an_upper_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_graphs(monkeypatch, roofs, FakeDevice(issue_seconds=2 * MOST_HOLD_SECONDS, step_seconds=1e-4))
    found = measure_null_kernel(CUDA)
    assert set(found.seconds) == {"alone"}
    assert found.no_graph is not None
    assert found.no_graph.endswith("is only an upper bound")


def test_on_a_cpu_there_is_no_graph_to_measure() -> None:
    found = measure_null_kernel(torch.device("cpu"))
    assert set(found.seconds) == {"alone"}
    assert found.seconds["alone"] > 0
    assert found.no_graph is None


@pytest.mark.usefixtures("pretended")
def test_a_capture_that_fails_leaves_the_value_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> object:
        raise RuntimeError("capture is not permitted here")

    monkeypatch.setattr(roofs, "_in_graph", fail)
    found = measure_null_kernel(CUDA)
    assert set(found.seconds) == {"alone"}
    assert found.no_graph == "RuntimeError: capture is not permitted here"


@pytest.mark.usefixtures("pretended")
def test_a_lost_device_is_not_called_a_missing_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> object:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(roofs, "_in_graph", fail)
    with pytest.raises(torch.AcceleratorError):
        measure_null_kernel(CUDA)
