"""Traces as Kineto writes them, made by hand: sessions of decode steps with whatever is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from service.step.buffers import Arguments
from service.step.trace import DEVICE_WORK, STEP_MARK, Event

KERNELS = 90
KERNEL_US = 2.0
PERIOD_US = 1000.0

STREAM = 7


def event(
    category: str, name: str, begin: float, length: float, correlation: int | None = None, **about: Any
) -> Event:
    """A complete event; `about` may have its `tid` and `stream`."""
    arguments = (
        {} if correlation is None else {"correlation": correlation, "stream": about.get("stream", STREAM)}
    )
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": begin,
        "dur": length,
        "tid": about.get("tid", 1),
        "args": arguments,
    }


def call(name: str, begin: float, correlation: int, length: float = 3.0) -> Event:
    return event("cuda_runtime", name, begin, length, correlation)


def kernel(
    name: str, begin: float, correlation: int, length: float = KERNEL_US, stream: int = STREAM
) -> Event:
    return event("kernel", name, begin, length, correlation, stream=stream)


def graph_id(step: int) -> int:
    """The correlation id of the graph launch of `step`."""
    return 100 * (step + 1)


def replays(
    steps: int,
    kernel_id: Callable[[int], int] = graph_id,
    device_clock: float = 0.0,
    separated: bool = True,
    kernels: Callable[[int], int] = lambda _: KERNELS,
) -> list[Event]:
    """Decode steps as a graph replay each, PERIOD_US apart: each ends with a fenced copy of its token.

    `kernel_id` gives the id that the kernels of a step carry, `kernels` how many of them the trace has (the
    last ones), `device_clock` by how much the device's clock differs. `separated` False: only the replays.
    """
    events = []
    for step in range(steps):
        begin = PERIOD_US * (step + 1)
        on_device = begin + device_clock
        launch = graph_id(step)
        events += [
            event("user_annotation", STEP_MARK, begin, 50.0),
            call("cudaGraphLaunch", begin + 5, launch, 30.0),
            call("cudaEventSynchronize", begin + 70, launch + 3, 300.0),
        ]
        first = KERNELS - kernels(step)
        events += [kernel(f"k{n}", on_device + 40 + 2.5 * n, kernel_id(step)) for n in range(first, KERNELS)]
        if separated:
            events += [
                call("cudaLaunchKernel", begin - 20, launch + 1),
                kernel("put", on_device - 12, launch + 1),
                call("cudaMemcpyAsync", begin + 60, launch + 2),
                event("gpu_memcpy", "Memcpy DtoH", on_device + 270, 2.0, launch + 2, stream=STREAM),
            ]
    return events


def plain_step(begin: float, first_id: int, kernels: int = 4, name: str = STEP_MARK) -> list[Event]:
    """A step of `kernels` operators, each a launch of its own: 20 µs of kernel in 25."""
    events = [event("user_annotation", name, begin, 10.0 * kernels)]
    for n in range(kernels):
        events.append(call("cudaLaunchKernel", begin + 1 + 10 * n, first_id + n))
        events.append(kernel(f"k{n}", begin + 10 + 25 * n, first_id + n, 20.0))
    return events


def without_device_work(events: list[Event], until: float = float("inf")) -> list[Event]:
    """`events` without what began on the device before `until`, by its clock."""
    return [e for e in events if e["cat"] not in DEVICE_WORK or e["ts"] >= until]


def arguments(length: int, reach: int) -> Arguments:
    cache = ((torch.zeros(2, reach, 1, 1), torch.zeros(2, reach, 1, 1)),)
    row = torch.zeros(2, dtype=torch.int64)
    return torch.zeros(2, length, dtype=torch.int64), row, row, cache


def step(*_: object) -> tuple[Tensor, Tensor]:
    return torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
