"""What the engine reports of its modes and its memory, as series; counters grow by what has changed."""

from __future__ import annotations

from collections.abc import Mapping

from service.front.metrics.series import Labels, Series
from service.protocol.splits import SIDES, SampleCounts, StepSplit
from service.protocol.status import ModeStatus


class Statuses:
    """The newest status of each mode since the engine started."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._newest: dict[str, ModeStatus] = {}
        self._samples: dict[Labels, SampleCounts] = {}
        self._memory_events: dict[str, int] = {}

    def effective(self, mode: str) -> str | None:
        """What `mode` was declared to be; None before its first status."""
        status = self._newest.get(mode)
        return None if status is None else status.effective

    def mode(self, status: ModeStatus) -> None:
        """A mode changed: counters grow by the difference to its last status, gauges are set."""
        name = status.mode
        write = self._series.write
        before = self._newest.get(name)
        self._newest[name] = status
        for seconds in status.compile_seconds[len(before.compile_seconds) if before else 0 :]:
            write("compile_seconds", seconds, name)
        write("graph_breaks_total", status.graph_breaks - (before.graph_breaks if before else 0), name)
        write("recompiles_total", status.recompiles - (before.recompiles if before else 0), name)
        captured = status.graph_captures - (before.graph_captures if before else 0)
        if captured:
            write("cudagraph_captures_total", captured, name)
        write("mode_ready", 1 if status.state == "ready" else 0, name)
        write("mode_failed", 1 if status.state == "failed" else 0, name)
        self._declare(before, status)
        if status.warmup_seconds is not None:
            write("warmup_seconds", status.warmup_seconds, name, status.cache or "none")
        if status.parity is not None:
            write("mode_parity_max_abs_logit_difference", status.parity.max_abs_logit_difference, name)
        for split in status.splits:
            self._split(name, split)
        self._device_times(status)

    def _split(self, mode: str, split: StepSplit) -> None:
        """The newest samples of one step."""
        place = mode, split.phase, str(split.batch)
        grown = split.all - self._samples.get(place, SampleCounts())
        self._samples[place] = split.all
        for side in SIDES:
            self._series.write("samples_total", getattr(grown, side), *place, side)
        if split.phase == "decode":
            self._series.write("device_bound_index", 1 - split.dispatch_share, mode, str(split.batch))

    def _device_times(self, status: ModeStatus) -> None:
        """What was measured of a GPU's steps; an upper bound is no measurement, and stays out."""
        write, name = self._series.write, status.mode
        for device in (entry for entry in status.device_times if not entry.upper_bound):
            write("step_device_seconds", device.seconds, name, device.phase, str(device.batch))
        for kernel in status.kernel_times:
            write("step_kernel_seconds", kernel.seconds, name, kernel.phase, str(kernel.batch))
        if status.profiler_cost is not None:
            write("profiler_dispatch_ratio", status.profiler_cost.ratio, name)

    def memory(self, statistics: Mapping[str, int]) -> None:
        """The caching allocator's sizes and event counts; empty on a CPU."""
        write = self._series.write
        for name, value in statistics.items():
            kind, _, stat = name.rpartition("_")
            if stat in ("current", "peak"):
                write(f"memory_{kind}_bytes", value, stat)
            else:
                write(f"memory_{name}_total", value - self._memory_events.get(name, 0))
                self._memory_events[name] = value

    def lost(self) -> None:
        """The engine has ended, and the next one counts from zero."""
        for status in self._newest.values():
            self._series.remove("mode_effective_info", *_declaration(status))
        self._newest.clear()
        self._samples.clear()
        self._memory_events.clear()

    def _declare(self, before: ModeStatus | None, status: ModeStatus) -> None:
        if before is not None and _declaration(before) != _declaration(status):
            self._series.remove("mode_effective_info", *_declaration(before))
        self._series.write("mode_effective_info", 1, *_declaration(status))


def _declaration(status: ModeStatus) -> Labels:
    return status.mode, status.effective, status.reason or ""
