"""What the machine can do: the cost of a null kernel, and how fast memory moves and matrices multiply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter_ns

import torch
from torch import nn

from models.served import Served
from service.records import MatrixRate, MemoryBandwidth, StepBytes, StepFlops
from service.step.buffers import Buffers
from service.step.process_state import mapped_blocks

REPEATS = 201


def null_kernel_seconds(device: torch.device) -> float:
    """What one operator on one element costs the host, under inference mode; on a CPU with its kernel."""
    with torch.inference_mode():
        value, one = torch.zeros(1, device=device), torch.ones(1, device=device)
        return _median_seconds(lambda: value.add_(one))


def _median_seconds(operation: Callable[[], object]) -> float:
    samples = []
    for _ in range(REPEATS):
        began = perf_counter_ns()
        operation()
        samples.append(perf_counter_ns() - began)
    return median(samples) / 1e9


MATRIX_SIZES = {"cpu": 512, "cuda": 4096}
"""Of the product whose rate is the arithmetic roof: packing and launching are little of its time."""

MOST_BYTES = 256 * 2**20
"""No larger a buffer is moved: it is beyond every cache, so that larger ones move no slower."""

LEAST_BYTES = 2**20
PASSES = 12
COPIES = 20
"""Queued behind each other on CUDA, so that the host's launches are not part of the time."""

QUEUE_CYCLES = 4_000_000
"""Of the device's clock, about 2 ms: longer than the host takes to queue COPIES copies."""


def memory_bandwidth(device: torch.device, weight_bytes: int) -> MemoryBandwidth:
    """The fastest of PASSES over a buffer as large as the weights, so that it lies in caches as they do."""
    size = min(max(weight_bytes, LEAST_BYTES), MOST_BYTES)
    if device.type == "cuda":
        # Of a device that is nearly full only a part, so that measuring ends no engine.
        size = min(size, max(LEAST_BYTES, torch.cuda.mem_get_info(device)[0] // 4))
        return MemoryBandwidth(kind="copy", bytes_per_second=_copied(device, size), buffer_bytes=size)
    # Kept pages would stay with the process: see `keep_freed_memory`.
    with mapped_blocks():
        rate = _read(size)
    return MemoryBandwidth(kind="read", bytes_per_second=rate, buffer_bytes=size)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> MatrixRate:
    """Floating-point operations per second of a product of two square matrices: the fastest of PASSES."""
    size = MATRIX_SIZES[device.type]
    left, right, product = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(3))

    def multiply() -> None:
        torch.mm(left, right, out=product)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.inference_mode():
        rate = max(_rate(2 * size**3, multiply) for _ in range(PASSES))
    return MatrixRate(flops_per_second=rate, size=size)


def step_flops(model: Served) -> StepFlops:
    """What a decode step of `model` must compute: two operations per weight of a matrix product and sequence;
    per attended position two products of the width of the residual stream in each layer.
    """
    return StepFlops(
        per_row=2 * sum(weight.numel() for weight in _weights(model)),
        per_position=4 * model.config.layers * model.config.width,
    )


def step_bytes(model: nn.Module, buffers: Buffers) -> StepBytes:
    """Bytes that a decode step of `model` must move; see `statistics.boundedness.decode_bytes`. Weights are
    those of matrix products, each counted once. `buffers` are those of any bucket.
    """
    cache = [tensor for pair in buffers.cache for tensor in pair]
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return StepBytes(
        weights=sum(weight.numel() * weight.element_size() for weight in _weights(model)),
        cache_per_position=sum(tensor[0, 0].numel() * tensor.element_size() for tensor in cache),
        activations_per_row=sum(
            (linear.in_features + linear.out_features) * linear.weight.element_size() for linear in linears
        ),
    )


def _weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """Those of matrix products; an embedding reads one row of its table per token."""
    for module in model.modules():
        if not isinstance(module, nn.Embedding):
            yield from (weight for weight in module.parameters(recurse=False) if weight.dim() > 1)


def _read(size: int) -> float:
    """Bytes per second of the fastest read of `size` bytes; a sum is the fastest reader torch has."""
    buffer = torch.ones(size // 4, dtype=torch.float32)
    return max(_rate(size, lambda: buffer.sum()) for _ in range(PASSES))


def _rate(amount: int, action: Callable[[], object]) -> float:
    began = perf_counter_ns()
    action()
    return amount * 1e9 / (perf_counter_ns() - began)


def _copied(device: torch.device, size: int) -> float:
    """Bytes per second, read and written, of the fastest queue of copies from one half to the other."""
    source = torch.ones(size // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rates: list[float] = []
    for _ in range(PASSES):
        torch.cuda._sleep(QUEUE_CYCLES)
        start.record()
        for _ in range(COPIES):
            target.copy_(source)
        end.record()
        end.synchronize()
        rates.append(2 * source.numel() * COPIES / (start.elapsed_time(end) / 1e3))
    del source, target
    torch.cuda.empty_cache()
    return max(rates)
