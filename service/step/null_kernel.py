"""The machine's null-kernel floor: the cost of an operator on one element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

import torch

from service.step.device_errors import is_device_lost

REPEATS = 201
KERNELS_PER_GRAPH = 100


@dataclass(frozen=True, slots=True)
class NullKernel:
    """Median seconds per operator on one element, under inference mode.

    `seconds` has `alone`, the host's time to issue one. On CUDA it has `in_graph`, the device's time per
    kernel inside one replayed graph of 100: what is left of a launch once the host no longer makes it; where
    that could not be measured, `no_graph` is the reason. On a CPU there is no graph, and `alone` contains the
    (empty) kernel.
    """

    seconds: dict[str, float]
    no_graph: str | None = None


def measure_null_kernel(device: torch.device) -> NullKernel:
    """Measure on `device`. Raises only what loses the device's context."""
    with torch.inference_mode():
        value = torch.zeros(1, device=device)
        one = torch.ones(1, device=device)
        alone = _median_seconds(lambda: value.add_(one))
    if device.type != "cuda":
        return NullKernel({"alone": alone})
    try:
        return NullKernel({"alone": alone, "in_graph": _in_graph(device)})
    except RuntimeError as error:
        if is_device_lost(error):
            raise
        return NullKernel({"alone": alone}, f"{type(error).__name__}: {error}"[:2000])


def _median_seconds(operation: Callable[[], object]) -> float:
    samples = []
    for _ in range(REPEATS):
        began = perf_counter_ns()
        operation()
        samples.append(perf_counter_ns() - began)
    return median(samples) / 1e9


def _in_graph(device: torch.device) -> float:
    value = torch.zeros(1, device=device)
    one = torch.ones(1, device=device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(KERNELS_PER_GRAPH):
            value.add_(one)
    samples: list[float] = []
    for _ in range(REPEATS):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / KERNELS_PER_GRAPH)
    return median(samples)
