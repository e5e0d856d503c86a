"""The machine's null-kernel floor: the cost of an operator on one element."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

import torch

REPEATS = 201
KERNELS_PER_GRAPH = 100


def null_kernel_seconds(device: torch.device) -> dict[str, float]:
    """Median seconds per operator on one element, under inference mode.

    `alone` is the host's time to issue one. On CUDA `in_graph` is the device's time per kernel inside one
    replayed graph of 100: what is left of a launch once the host no longer makes it. On a CPU there is no
    graph, and `alone` contains the (empty) kernel.
    """
    with torch.inference_mode():
        value = torch.zeros(1, device=device)
        one = torch.ones(1, device=device)
        alone = _median_seconds(lambda: value.add_(one))
    if device.type != "cuda":
        return {"alone": alone}
    return {"alone": alone, "in_graph": _in_graph(device)}


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
