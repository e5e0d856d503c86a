"""The arm of the layer table that is the device's own: a graph of one operator, replayed."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter_ns

import torch
from torch import Tensor

from service.anatomy.layers.arms import Arm, Times
from service.anatomy.layers.loops import Loops
from service.step.device_time import MOST_HOLD_SECONDS, CudaQueue, DeviceQueue, issue_seconds, visit_queue

KERNELS_PER_GRAPH = 20

HOLD_MARGIN = 8.0
"""The device is held for so many times what issuing one replay takes: two events are issued as well."""


def graph_arm(loops: Loops, computing: str, given: list[Tensor]) -> Arm:
    """Device seconds per kernel, of a replayed graph of KERNELS_PER_GRAPH."""
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        loops.plain(computing, given, 1)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loops.plain(computing, given, KERNELS_PER_GRAPH)
    return Arm(_times(CudaQueue(), graph.replay))


def _times(queue: DeviceQueue, replay: Callable[[], object]) -> Times:
    """Seconds of so many kernels, from one replay that is queued while the device is held.

    Infinite where the device has reached it before all was issued: it may have waited for the host.
    """
    replay()  # the first one uploads the graph
    hold_seconds = min(HOLD_MARGIN * issue_seconds(queue, replay, perf_counter_ns), MOST_HOLD_SECONDS)

    def run(times: int) -> float:
        found = visit_queue(queue, replay, 1, hold_seconds)
        return found.seconds / KERNELS_PER_GRAPH * times if found.ahead else math.inf

    return run
