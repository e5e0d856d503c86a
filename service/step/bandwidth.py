"""The roofs of a decode step: how fast the device moves memory and multiplies, and how much a step needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns

import torch
from torch import nn

from models.served import Served
from service.records import MatrixRate, MemoryBandwidth, StepBytes, StepFlops
from service.step.buffers import Buffers
from service.step.process_state import mapped_blocks

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
    """Bandwidth over a buffer as large as the weights, so that it lies in the caches as far as they do.

    The fastest of PASSES passes: a roof that was measured too low would flatter every step under it.
    """
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
    """What a decode step of `model` must compute: two operations per weight of a matrix product and sequence.

    Per attended position two products of the width of the residual stream in each layer, which heads share.
    """
    return StepFlops(
        per_row=2 * sum(_elements(module) for module in model.modules()),
        per_position=4 * model.config.layers * model.config.width,
    )


def step_bytes(model: nn.Module, buffers: Buffers) -> StepBytes:
    """What a decode step of `model` must move, in bytes; see `statistics.boundedness.decode_bytes`.

    Weights are those of matrix products, each counted once; norms, a thousandth of them, and embeddings, of
    which a step reads one row per token, are left out. `buffers` are those of any bucket.
    """
    cache = [tensor for pair in buffers.cache for tensor in pair]
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return StepBytes(
        weights=sum(_weights_of(module) for module in model.modules()),
        cache_per_position=sum(tensor[0, 0].numel() * tensor.element_size() for tensor in cache),
        activations_per_row=sum(
            (linear.in_features + linear.out_features) * linear.weight.element_size() for linear in linears
        ),
    )


def _weights_of(module: nn.Module) -> int:
    """Bytes of the weights that are `module`'s own."""
    return sum(weight.numel() * weight.element_size() for weight in _weights(module))


def _elements(module: nn.Module) -> int:
    return sum(weight.numel() for weight in _weights(module))


def _weights(module: nn.Module) -> Iterator[nn.Parameter]:
    """Those of matrix products; an embedding reads one row of its table per token."""
    if not isinstance(module, nn.Embedding):
        yield from (weight for weight in module.parameters(recurse=False) if weight.dim() > 1)


def _read(size: int) -> float:
    """Bytes per second of the fastest read of `size` bytes by the threads that run the steps.

    A sum is the fastest of torch's and numpy's readers of one buffer, within caches and beyond them.
    """
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
