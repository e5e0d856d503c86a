"""The null kernel: absent with its reason where a graph cannot be captured, and never the engine's end."""

from __future__ import annotations

import pytest
import torch

from service.step import null_kernel
from service.step.null_kernel import measure_null_kernel

CUDA = torch.device("cuda")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a CUDA device, on this machine's CPU."""
    zeros, ones = torch.zeros, torch.ones
    monkeypatch.setattr(torch, "zeros", lambda count, device: zeros(count))
    monkeypatch.setattr(torch, "ones", lambda count, device: ones(count))


def test_on_a_cpu_there_is_no_graph_to_measure() -> None:
    found = measure_null_kernel(torch.device("cpu"))
    assert set(found.seconds) == {"alone"}
    assert found.seconds["alone"] > 0
    assert found.no_graph is None


@pytest.mark.usefixtures("pretended")
def test_a_capture_that_fails_leaves_the_value_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> float:
        raise RuntimeError("capture is not permitted here")

    monkeypatch.setattr(null_kernel, "_in_graph", fail)
    found = measure_null_kernel(CUDA)
    assert set(found.seconds) == {"alone"}
    assert found.no_graph == "RuntimeError: capture is not permitted here"


@pytest.mark.usefixtures("pretended")
def test_a_lost_device_is_not_called_a_missing_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> float:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(null_kernel, "_in_graph", fail)
    with pytest.raises(torch.AcceleratorError):
        measure_null_kernel(CUDA)
