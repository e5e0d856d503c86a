"""The roofline of a decode step: the bytes that it must move and the arithmetic that it must do, against the
rates of the device.

Imports nothing of ours but the other statistics; the studies and the sweep's report both use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.statistics.intervals import Interval


@dataclass(frozen=True, slots=True)
class Roofline:
    """One decode step under its roof: `bytes_per_step` is the least that it moves.

    `attained` is that over its kernel time, bytes per second, and `share` is `attained` over the bandwidth,
    each with the interval that the kernel time leaves. A share above 1 says that the bytes came from a
    faster memory than the one that was measured (caches). A low share says that something else than memory
    bounds the kernels: arithmetic, launches between small kernels, or latency.
    """

    bytes_per_step: float
    attained: Interval
    share: Interval


def decode_bytes(step_bytes: Mapping[str, float], rows: float, positions: float) -> float:
    """Bytes that a decode step of `rows` sequences must move, each of which attends to `positions`.

    weights + rows · (positions · cache_per_position + activations_per_row), by the keys of `step_bytes`,
    which are the fields of `protocol.status.StepBytes`. Weights are read once for the whole batch, keys and
    values once per sequence, and what enters and leaves a matrix product once per row: the memory term of
    Pope et al., "Efficiently Scaling Transformer Inference" (arXiv:2211.05102, section 2), with activations
    added. A lower bound: padding of batch and cache, and what is written only for the next kernel to read
    (norms, rotations), are left out.
    """
    per_row = positions * step_bytes["cache_per_position"] + step_bytes["activations_per_row"]
    return step_bytes["weights"] + rows * per_row


def decode_flops(step_flops: Mapping[str, float], rows: float, positions: float) -> float:
    """Floating-point operations of a decode step of `rows` sequences, each of which attends to `positions`.

    rows · (per_row + positions · per_position), by the keys of `step_flops`, the fields of
    `protocol.status.StepFlops`: the compute term of Pope et al., section 2, with attention added.
    """
    return rows * (step_flops["per_row"] + positions * step_flops["per_position"])


def attended_positions(prompt_tokens: float, steps: float) -> float:
    """Cache positions that a decode step attends to, the mean over `steps` steps after a prompt.

    The first writes at position `prompt_tokens` and attends to one more; each further one to one more again.
    """
    return prompt_tokens + (steps + 1) / 2


def roofline(bytes_per_step: float, kernel_seconds: Interval, bytes_per_second: float) -> Roofline | None:
    """`bytes_per_step` in `kernel_seconds` against a bandwidth of `bytes_per_second`.

    Williams, Waterman and Patterson, "Roofline" (doi:10.1145/1498765.1498785), of which decode is the slanted
    part: some operations per byte. None where there is no kernel time. An interval of kernel time that
    reaches 0 leaves the share without an upper end.
    """
    if kernel_seconds.value <= 0 or bytes_per_second <= 0:
        return None
    ends = (kernel_seconds.value, kernel_seconds.high, kernel_seconds.low)
    rates = [bytes_per_step / end if end > 0 else float("inf") for end in ends]
    attained = Interval(rates[0], rates[1], rates[2], kernel_seconds.samples)
    shares = [rate / bytes_per_second for rate in rates]
    return Roofline(bytes_per_step, attained, Interval(shares[0], shares[1], shares[2], attained.samples))
