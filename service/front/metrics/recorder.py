"""Records events in the series of the catalogue: requests, modes, and the engine's starts and ends."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter, time

from prometheus_client import CollectorRegistry

from service.front.engine_client import Listener
from service.front.errors import Rejection
from service.front.metrics.catalogue import FALLBACK_REASONS, Start
from service.front.metrics.series import Labels, Series
from service.front.request_timing import RequestTiming, part_of
from service.front.settings import model_name
from service.modes import FALLBACK, MODES
from service.records import (
    SIDES,
    DeviceTime,
    EngineStatus,
    KernelTime,
    ModeStatus,
    StepGroup,
    StepProfile,
)
from service.statistics.boundedness import device_bound_index
from service.workloads import GENERATE, Workload, of_job

REQUEST_PARTS = {
    "request_duration_seconds": "total_seconds",
    "request_queue_seconds": "queue_seconds",
    "request_dispatch_seconds": "dispatch_seconds",
    "request_device_span_seconds": "device_span_seconds",
    "request_kernel_seconds": "kernel_seconds",
    "request_sync_wait_seconds": "sync_wait_seconds",
    "time_to_first_token_seconds": "time_to_first_token_seconds",
}
"""Histogram → field of `TimingsBody`, for what is observed wherever it is measured."""


class Metrics(Listener):
    """The service's metrics. `timeout_seconds` is that of requests.

    `instrumented` False: what only full instrumentation measures is absent until it has been measured.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        modes: list[str],
        batch_sizes: list[int],
        build: Mapping[str, str],
        instrumented: bool = True,
        timeout_seconds: float = 0.0,
        workload: Workload = GENERATE,
    ) -> None:
        self._build = build
        self._workload = workload
        self._instrumented = instrumented
        self._splits = self._merges = False
        self._device_type = "cpu"
        self._series = Series(registry, modes, batch_sizes, timeout_seconds, workload)
        self._modes = modes
        self._statuses: dict[str, ModeStatus] = {}
        self._counted: dict[tuple[str, ...], int] = {}
        of_tokens = ["tokens"] if workload.tokens else []
        self._series.start("always", *of_tokens, *(["timings"] if instrumented else []))

    def observe(self, timing: RequestTiming) -> None:
        began = perf_counter()
        mode, groups = self._observed_mode(timing), _counted_steps(timing)
        self._count(timing, mode, groups)
        if timing.slowed:
            # Profiling and sampling slow a request, so no time histogram counts it.
            self._series.write("profiled_requests_total", 1, timing.job.mode)
            if timing.outcome.profile:  # empty where its trace could not be kept
                self._observe_profile(timing, timing.outcome.profile, mode)
        else:
            for name, seconds in self._request_seconds(timing):
                self._series.write(name, seconds, mode)
            for group in groups:
                self._observe_phase(group, mode, timing.engine.dispatch_source == "attached")
        self._series.write("instrumentation_seconds_total", perf_counter() - began)

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
        for statistic, value in (status.memory or {}).items():
            kind, _, stat = statistic.rpartition("_")
            if stat in ("current", "peak"):
                write(f"memory_{kind}_bytes", value, stat)
            else:
                self._grow(f"memory_{statistic}_total", value)

    def mode(self, status: ModeStatus) -> None:
        """A mode changed: counters grow by what its engine counted since, gauges are set."""
        name, write = status.mode, self._series.write
        before = self._statuses.get(name)
        self._statuses[name] = status
        for seconds in status.compile_seconds[len(before.compile_seconds) if before else 0 :]:
            write("compile_seconds", seconds, name)
        self._grow("graph_breaks_total", status.graph_breaks, name)
        self._grow("recompiles_total", status.recompiles, name)
        if status.graph_captures:
            self._grow("cudagraph_captures_total", status.graph_captures, name)
        write("mode_ready", status.state == "ready", name)
        write("mode_failed", status.state == "failed", name)
        if before is not None and _declaration(before) != _declaration(status):
            self._series.remove("mode_effective_info", *_declaration(before))
        write("mode_effective_info", 1, *_declaration(status))
        if status.warmup_seconds is not None:
            write("warmup_seconds", status.warmup_seconds, name, status.cache or "none")
        if status.parity is not None:
            write("mode_parity_max_abs_logit_difference", status.parity.max_abs_logit_difference, name)
        self._step_times(status, before)

    def engine_lost(self) -> None:
        """The engine ended: no mode is ready, and the next engine counts from zero."""
        self._series.write("engine_up", 0)
        self._series.write("engine_restarts_total", 1)
        for name in self._modes:
            self._series.write("mode_ready", 0, name)
            self._series.write("mode_failed", 0, name)
        for status in self._statuses.values():
            self._series.remove("mode_effective_info", *_declaration(status))
        self._statuses.clear()
        self._counted.clear()

    def render(
        self, accept: str, in_progress: Tally[str], waiting: int, fresh: bool = True
    ) -> tuple[bytes, str]:
        """As `Series.render`; of the unfinished requests `in_progress`, by mode, `waiting` have not begun."""
        for name in self._modes:
            self._series.write("requests_in_progress", in_progress[name], name)
        self._series.write("queue_depth", waiting)
        return self._series.render(accept, fresh)

    def _step_times(self, status: ModeStatus, before: ModeStatus | None) -> None:
        """What a step of a mode takes: by samples, and on a GPU as measured, which an upper bound is not."""
        name, write = status.mode, self._series.write
        for split in status.splits:
            step = name, split.phase, str(split.batch)
            for side in SIDES:
                self._grow("samples_total", getattr(split.all, side), *step, side)
            if split.phase == self._workload.main:
                write("device_bound_index", 1 - split.dispatch_share, name, str(split.batch))
        for device in status.device_times:
            if not device.upper_bound:
                write("step_device_seconds", device.seconds, name, device.phase, str(device.batch))
        usual = {_step_of(device) for device in status.device_times}
        for kernel in status.kernel_times:
            if _step_of(kernel) in usual:
                write("step_kernel_seconds", kernel.seconds, name, kernel.phase, str(kernel.batch))
        if status.profiles and not (before and before.profiles):
            self._step_contents(status.profiles, name)
        if status.profiler_cost is not None:
            write("profiler_dispatch_ratio", status.profiler_cost.ratio, name)

    def _grow(self, name: str, count: int, *labels: str) -> None:
        """Have a counter follow one of the engine's, which is at `count` since that engine started."""
        self._series.write(name, count - self._counted.get((name, *labels), 0), *labels)
        self._counted[name, *labels] = count

    def _observed_mode(self, timing: RequestTiming) -> str:
        """The requested mode, or 'fallback' where the request ran as another form than declared."""
        mode, outcome = timing.job.mode, timing.outcome
        declared = self._statuses.get(mode)
        if declared is None or declared.effective == outcome.effective:
            return mode
        reason = outcome.reason if outcome.reason in FALLBACK_REASONS else "other"
        self._series.write("fallbacks_total", 1, mode, reason)
        return FALLBACK

    def _count(self, timing: RequestTiming, mode: str, groups: Sequence[StepGroup]) -> None:
        outcome, timings, write = timing.outcome, timing.engine, self._series.write
        write("requests_total", 1, mode, "ok")
        write("batch_size", outcome.batch_size, mode)
        if self._workload.tokens:
            write("tokens_total", outcome.prompt_tokens, mode, "prompt")
            generated = sum(output.completion_tokens for output in outcome.outputs)
            write("tokens_total", generated, mode, "generated")
        shared = timings.shared
        switches = timings.involuntary_switches if shared is None else shared.counted_switches
        write("engine_involuntary_switches_total", switches)
        effect = MODES[timing.job.mode].effect(self._device_type)
        if effect.graph_replay and outcome.effective == effect.name:
            replays = sum(group.timings.steps for group in groups)
            write("cudagraph_replays_total", replays, timing.job.mode)

    def _request_seconds(self, timing: RequestTiming) -> Iterator[tuple[str, float]]:
        """The histograms that count such a request, each with its seconds; none for what was not measured."""
        for name, part in REQUEST_PARTS.items():
            seconds = part_of(timing.parts, part)
            if seconds is not None:
                yield name, seconds
        if not self._splits or timing.parts.dispatch_seconds is not None:
            # Else its steps have no samples yet, so that `other` would contain the steps themselves.
            yield "request_other_seconds", timing.parts.other_seconds
        if self._merges:
            yield "request_stall_seconds", timing.parts.stall_seconds or 0.0
        per_token = timing.time_per_output_token_seconds
        if per_token is not None:
            yield "time_per_output_token_seconds", per_token

    def _observe_phase(self, group: StepGroup, mode: str, attached: bool) -> None:
        phase, name, batch = group.timings, group.phase, str(group.batch)
        if phase.steps == 0:
            return
        writer = self._series.writer
        if name == self._workload.main:
            writer("step_batch_rows", mode, batch)(group.rows, phase.steps)
        for part in ("wall_seconds", "dispatch_seconds", "kernel_seconds", "period_seconds"):
            seconds = getattr(phase, part)
            if seconds is not None:
                writer(f"step_batch_{part}", mode, name, batch)(seconds, phase.steps)
        for part in ("dispatch", "device_span", "period"):
            for seconds in getattr(phase, f"{part}_steps_seconds"):
                writer(f"step_{part}_seconds", mode, name)(seconds)
        index = device_bound_index(phase.kernel_seconds, phase.dispatch_seconds)
        on_cuda = self._device_type == "cuda" and not attached
        if name == self._workload.main and index is not None and on_cuda:
            self._series.write("device_bound_index", index, mode, batch)

    def _step_contents(self, profiles: Iterable[StepProfile], mode: str) -> None:
        for entry in profiles:
            for what in ("operators", "kernels", "launches"):
                count = getattr(entry, what)
                if count is not None:
                    self._series.write(f"step_{what}", count, mode, entry.phase)

    def _observe_profile(self, timing: RequestTiming, profile: list[StepProfile], mode: str) -> None:
        """Set what a step consists of, and let the histograms that do not count the request point to it."""
        self._step_contents(profile, mode)
        at = time()
        for name, seconds in self._request_seconds(timing):
            self._series.exemplify(name, timing.job.id, seconds, at, mode)


def _measurable(status: EngineStatus) -> tuple[Start, ...]:
    """What this engine can measure; on a CPU by samples alone."""
    merged: tuple[Start, ...] = ("merged",) if status.batching != "off" else ()
    if status.device.startswith("cuda"):
        return "dispatch", "cuda", *merged
    return ("dispatch", "cpu", "sampled", *merged) if status.no_samples is None else merged


def _declaration(status: ModeStatus) -> Labels:
    return status.mode, status.effective, status.reason or ""


def _step_of(time: DeviceTime | KernelTime) -> tuple[object, ...]:
    return time.phase, time.batch, time.row_tokens, time.attended_tokens


def _counted_steps(timing: RequestTiming) -> Sequence[StepGroup]:
    """All steps of a request that ran alone; of a merged one those that it counts."""
    outcome, timings = timing.outcome, timing.engine
    if timings.shared is not None:
        return timings.shared.counted
    rows, batch = outcome.batch_size, outcome.batch_bucket
    by_phase = {phase: getattr(timings, phase) for phase in of_job(timing.job).phases}
    return [
        StepGroup(phase=phase, batch=batch, rows=rows * steps.steps, timings=steps)
        for phase, steps in by_phase.items()
    ]
