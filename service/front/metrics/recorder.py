"""Records events in the series of the catalogue: requests, modes, and the engine's starts and ends."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from time import perf_counter, time

from prometheus_client import CollectorRegistry

from service.front.engine_client import Listener
from service.front.errors import Rejection
from service.front.metrics.catalogue import FALLBACK_REASONS, Start
from service.front.metrics.series import LabelledSeries, Labels, Series
from service.front.request_timing import RequestTiming
from service.front.settings import model_name
from service.modes import FALLBACK, MODES
from service.records import (
    SIDES,
    EngineStatus,
    ModeStatus,
    Outcome,
    SampleCounts,
    StepGroup,
    StepProfile,
    StepSplit,
    Timings,
)
from service.statistics.boundedness import device_bound_index


class Metrics(Listener):
    """The service's metrics. `modes` and `batch_sizes` are the configured ones.

    `instrumented` False: what only full instrumentation measures is absent until it has been measured.
    `timeout_seconds` is that of requests.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        modes: list[str],
        batch_sizes: list[int],
        build: Mapping[str, str],
        instrumented: bool = True,
        timeout_seconds: float = 0.0,
    ) -> None:
        self._build = build
        self._instrumented = instrumented
        self._splits = self._merges = False
        self._device_type = "cpu"
        self._series = Series(registry, modes, batch_sizes, timeout_seconds)
        self._modes = modes
        self._statuses = _Statuses(self._series)
        self._series.start("always", *(["timings"] if instrumented else []))

    def observe(self, timing: RequestTiming) -> None:
        began = perf_counter()
        mode = self._observed_mode(timing)
        write = self._series.write
        write("requests_total", 1, mode, "ok")
        write("batch_size", timing.outcome.batch_size, mode)
        write("tokens_total", timing.outcome.prompt_tokens, mode, "prompt")
        generated = sum(output.completion_tokens for output in timing.outcome.outputs)
        write("tokens_total", generated, mode, "generated")
        write("engine_involuntary_switches_total", _counted_switches(timing.engine))
        self._observe_replays(timing)
        if timing.slowed:
            # Profiling and sampling slow a request, so no time histogram counts it.
            write("profiled_requests_total", 1, timing.job.mode)
            if timing.outcome.profile:  # empty where its trace could not be kept
                self._observe_profile(timing.outcome.profile, mode)
                self._exemplify(timing, mode)
        else:
            self._observe_request(timing, mode)
            for group in _counted_steps(timing.outcome, timing.engine):
                self._observe_phase(group, mode)
        write("instrumentation_seconds_total", perf_counter() - began)

    def failed(self, mode: str, outcome: str) -> None:
        self._series.write("requests_total", 1, mode, outcome)

    def rejected(self, reason: Rejection, mode: str | None) -> None:
        self._series.write("requests_rejected_total", 1, reason)
        if mode is not None:
            self._series.write("requests_total", 1, mode, "rejected")

    def connections(self, count: int, most: int) -> None:
        self._series.write("connections", count)
        self._series.write("connections_max", most)

    def loop_lag(self, seconds: float) -> None:
        self._series.write("event_loop_lag_seconds", seconds)

    def engine(self, status: EngineStatus) -> None:
        """The engine reported its status: start the series that it can measure."""
        self._device_type = status.device.partition(":")[0]
        if self._instrumented:
            measurable = _measurable(status)
            self._series.start(*measurable)
            self._splits, self._merges = "dispatch" in measurable, "merged" in measurable
        write = self._series.write
        write("engine_up", 1)
        version, commit = self._build["version"], self._build["commit"]
        write("build_info", 1, version, commit, status.torch, status.cuda or "none", status.device_name)
        layers, width = str(status.layers), str(status.width)
        write("model_info", 1, model_name(status.model), str(status.parameters), status.dtype, layers, width)
        self._statuses.memory(status.memory or {})

    def mode(self, status: ModeStatus) -> None:
        self._statuses.mode(status)

    def engine_lost(self) -> None:
        """The engine ended: no mode is ready, and the next engine counts from zero."""
        self._series.write("engine_up", 0)
        self._series.write("engine_restarts_total", 1)
        for name in self._modes:
            self._series.write("mode_ready", 0, name)
            self._series.write("mode_failed", 0, name)
        self._statuses.lost()

    def render(
        self, accept: str, in_progress: Tally[str], waiting: int, fresh: bool = True
    ) -> tuple[bytes, str]:
        """The exposition in the format that `accept` requests, and its content type.

        `in_progress` counts the unfinished requests by mode; `waiting` of them have not begun. Not `fresh`:
        the page may be that of the last second.
        """
        for name in self._modes:
            self._series.write("requests_in_progress", in_progress[name], name)
        self._series.write("queue_depth", waiting)
        return self._series.render(accept, fresh)

    def _observed_mode(self, timing: RequestTiming) -> str:
        """The requested mode, or 'fallback' where the request ran as another form than declared."""
        mode, outcome = timing.job.mode, timing.outcome
        if self._statuses.effective(mode) in (None, outcome.effective):
            return mode
        reason = outcome.reason if outcome.reason in FALLBACK_REASONS else "other"
        self._series.write("fallbacks_total", 1, mode, reason)
        return FALLBACK

    def _observe_replays(self, timing: RequestTiming) -> None:
        """Count each step of a request whose mode replays graphs as a replay."""
        mode, timings = timing.job.mode, timing.engine
        effect = MODES[mode].effect(self._device_type)
        if effect.graph_replay and timing.outcome.effective == effect.name:
            steps = sum(group.timings.steps for group in _counted_steps(timing.outcome, timings))
            self._series.write("cudagraph_replays_total", steps, mode)

    def _observe_request(self, timing: RequestTiming, mode: str) -> None:
        write = self._series.under(mode).write
        for name, seconds in _request_seconds(timing, self._splits, self._merges).items():
            if seconds is not None:
                write(name, seconds)

    def _exemplify(self, timing: RequestTiming, mode: str) -> None:
        """Have the histograms that would have counted this request point to its trace."""
        at = time()
        for name, seconds in _request_seconds(timing, self._splits, self._merges).items():
            if seconds is not None:
                self._series.exemplify(name, timing.job.id, seconds, at, mode)

    def _observe_phase(self, group: StepGroup, mode: str) -> None:
        phase, name, batch = group.timings, group.phase, str(group.batch)
        steps, dispatch, kernel = phase.steps, phase.dispatch_seconds, phase.kernel_seconds
        if steps == 0:
            return
        if name == "decode":
            self._series.under(mode, batch).add("step_batch_rows", group.rows, steps)
        add = self._series.under(mode, name, batch).add
        sums = {
            "step_batch_wall_seconds": phase.wall_seconds,
            "step_batch_dispatch_seconds": dispatch,
            "step_batch_kernel_seconds": kernel,
            "step_batch_period_seconds": phase.period_seconds,
        }
        for summary, seconds in sums.items():
            if seconds is not None:
                add(summary, seconds, steps)
        each = self._series.under(mode, name)
        _observe_steps(each, "step_dispatch_seconds", phase.dispatch_steps_seconds)
        _observe_steps(each, "step_device_span_seconds", phase.device_span_steps_seconds)
        _observe_steps(each, "step_period_seconds", phase.period_steps_seconds)
        index = device_bound_index(kernel, dispatch)
        if name == "decode" and index is not None and self._device_type == "cuda":
            self._series.write("device_bound_index", index, mode, batch)

    def _observe_profile(self, profile: list[StepProfile], mode: str) -> None:
        for entry in profile:
            counts = {"operators": entry.operators, "kernels": entry.kernels, "launches": entry.launches}
            for what, count in counts.items():
                if count is not None:
                    self._series.write(f"step_{what}", count, mode, entry.phase)


def _observe_steps(series: LabelledSeries, name: str, values: list[float]) -> None:
    for seconds in values:
        series.write(name, seconds)


def _measurable(status: EngineStatus) -> tuple[Start, ...]:
    """What this engine can measure; on a CPU by samples alone."""
    merged: tuple[Start, ...] = ("merged",) if status.batching != "off" else ()
    if status.device.startswith("cuda"):
        return "dispatch", "cuda", *merged
    return ("dispatch", "cpu", "sampled", *merged) if status.no_samples is None else merged


class _Statuses:
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
        step = mode, split.phase, str(split.batch)
        grown = split.all - self._samples.get(step, SampleCounts())
        self._samples[step] = split.all
        for side in SIDES:
            self._series.write("samples_total", getattr(grown, side), *step, side)
        if split.phase == "decode":
            self._series.write("device_bound_index", 1 - split.dispatch_share, mode, str(split.batch))

    def _device_times(self, status: ModeStatus) -> None:
        """What was measured of a GPU's steps; upper bounds are left out."""
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


def _request_seconds(timing: RequestTiming, splits: bool, merges: bool) -> dict[str, float | None]:
    """Histogram → seconds of this request; None: not measured.

    `splits`: its engine separates dispatch from kernel. `merges`: it may merge requests, which may stall.
    """
    parts = timing.parts
    seconds = {
        "request_duration_seconds": parts.total_seconds,
        "request_queue_seconds": parts.queue_seconds,
        "request_dispatch_seconds": parts.dispatch_seconds,
        "request_device_span_seconds": parts.device_span_seconds,
        "request_kernel_seconds": parts.kernel_seconds,
        "request_sync_wait_seconds": parts.sync_wait_seconds,
        "request_stall_seconds": parts.stall_seconds or 0.0 if merges else None,
        "request_other_seconds": parts.other_seconds,
        "time_to_first_token_seconds": parts.time_to_first_token_seconds,
        "time_per_output_token_seconds": timing.time_per_output_token_seconds,
    }
    if splits and parts.dispatch_seconds is None:
        # Its steps have no samples yet, so that `other` would contain the steps themselves.
        del seconds["request_other_seconds"]
    return seconds


def _counted_steps(outcome: Outcome, timings: Timings) -> Sequence[StepGroup]:
    """All steps of a request that ran alone; of a merged one those that it counts."""
    if timings.shared is not None:
        return timings.shared.counted
    rows, batch = outcome.batch_size, outcome.batch_bucket
    prefill, decode = timings.prefill, timings.decode
    return (
        StepGroup(phase="prefill", batch=batch, rows=rows * prefill.steps, timings=prefill),
        StepGroup(phase="decode", batch=batch, rows=rows * decode.steps, timings=decode),
    )


def _counted_switches(timings: Timings) -> int:
    return timings.involuntary_switches if timings.shared is None else timings.shared.counted_switches
