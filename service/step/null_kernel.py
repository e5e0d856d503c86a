"""What an operator on one element costs: the machine's null kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

import torch

from service.step.device_errors import is_device_lost
from service.step.device_time import CudaQueue, QueuedTime, queued_time

REPEATS = 201
KERNELS_PER_GRAPH = 100

HOST_BEHIND = (
    "replays could not be queued ahead of the device: {microseconds:.2f} µs per kernel is only an upper bound"
)


@dataclass(frozen=True, slots=True)
class NullKernel:
    """Median seconds per operator on one element, under inference mode.

    `seconds` has `alone`, the host's time to issue one. On CUDA it has `in_graph`, the device's time per
    kernel inside replayed graphs of 100 that were queued ahead of it: what is left of a launch once the host
    no longer makes it; where that could not be measured, `no_graph` is the reason. On a CPU there is no
    graph, and `alone` contains the (empty) kernel.
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
        replay = _in_graph(device)
    except RuntimeError as error:
        if is_device_lost(error):
            raise
        return NullKernel({"alone": alone}, f"{type(error).__name__}: {error}"[:2000])
    in_graph = replay.seconds.value / KERNELS_PER_GRAPH
    if replay.upper_bound:
        return NullKernel({"alone": alone}, HOST_BEHIND.format(microseconds=in_graph * 1e6))
    return NullKernel({"alone": alone, "in_graph": in_graph})


def _median_seconds(operation: Callable[[], object]) -> float:
    samples = []
    for _ in range(REPEATS):
        began = perf_counter_ns()
        operation()
        samples.append(perf_counter_ns() - began)
    return median(samples) / 1e9


def _in_graph(device: torch.device) -> QueuedTime:
    """Of one replay of a graph of KERNELS_PER_GRAPH kernels."""
    value = torch.zeros(1, device=device)
    one = torch.ones(1, device=device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(KERNELS_PER_GRAPH):
            value.add_(one)
    return queued_time(CudaQueue(), graph.replay, perf_counter_ns)
