"""The roof over the decode steps of a bench: what they must move, and how fast this device moves it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from service.measure.cases import Bench
from service.records import MemoryBandwidth
from service.statistics.boundedness import Roofline, decode_bytes, roofline
from service.statistics.intervals import Interval
from service.step.bandwidth import memory_bandwidth, step_bytes
from service.step.untimed import DECODE_POSITION


@dataclass(frozen=True, slots=True)
class Roof:
    """`bandwidth` of memory, and the sizes of a step by the keys of `protocol.status.StepBytes`."""

    bandwidth: MemoryBandwidth
    step_bytes: dict[str, float]
    positions: int

    def over(self, rows: int, kernel_seconds: Interval) -> Roofline | None:
        """The roofline of a measured decode step of `rows` sequences; None without kernel time."""
        moved = decode_bytes(self.step_bytes, rows, self.positions)
        return roofline(moved, kernel_seconds, self.bandwidth.bytes_per_second)


def measure_roof(bench: Bench) -> Roof:
    """Measure the bandwidth over a buffer as large as the weights, in some milliseconds to a second."""
    buffers = bench.buffers[max(bench.buffers)]
    sizes = step_bytes(bench.model, buffers)
    # Where a measured decode step stands: see `measured_inputs.set_positions`.
    positions = min(DECODE_POSITION, max(buffers.caches) - 1) + 1
    return Roof(memory_bandwidth(bench.device, sizes.weights), msgspec.structs.asdict(sizes), positions)


def bandwidth_text(found: MemoryBandwidth) -> str:
    """What the bandwidth was measured over: '9.4 GB/s, read over a buffer of 12.1 MB'."""
    how = "copied (read + written) within" if found.kind == "copy" else "read over"
    return f"{found.bytes_per_second / 1e9:.4g} GB/s, {how} a buffer of {found.buffer_bytes / 1e6:.4g} MB"
