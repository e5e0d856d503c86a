"""Records events in the series of the catalogue: requests, modes, and the engine's starts and ends."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from time import perf_counter, time

from prometheus_client import CollectorRegistry

from service.front.errors import Rejection
from service.front.metrics.counted_steps import counted_steps, counted_switches
from service.front.metrics.exemplars import exemplar, trace_of
from service.front.metrics.request_seconds import request_seconds
from service.front.metrics.series import LabelledSeries, Series
from service.front.metrics.spec import FALLBACK_REASONS, Start
from service.front.metrics.statuses import Statuses
from service.front.model_name import model_name
from service.front.request_timing import RequestTiming
from service.protocol.modes import FALLBACK, MODES
from service.protocol.status import EngineStatus, ModeStatus
from service.protocol.timings import StepGroup, StepProfile
from service.statistics.boundedness import device_bound_index


class Metrics:
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
        self._statuses = Statuses(self._series)
        self._series.start("always", *(["timings"] if instrumented else []))

    def observe(self, timing: RequestTiming) -> None:
        """One request that ended well: all its metrics at once."""
        began = perf_counter()
        mode = self._observed_mode(timing)
        write = self._series.write
        write("requests_total", 1, mode, "ok")
        write("batch_size", timing.outcome.batch_size, mode)
        write("tokens_total", timing.outcome.prompt_tokens, mode, "prompt")
        generated = sum(output.completion_tokens for output in timing.outcome.outputs)
        write("tokens_total", generated, mode, "generated")
        write("engine_involuntary_switches_total", counted_switches(timing.engine))
        self._observe_replays(timing)
        if timing.slowed:
            # Who is examined is slower for it, so no time histogram counts such a request.
            write("profiled_requests_total", 1, timing.job.mode)
            if timing.outcome.profile is not None:
                self._observe_profile(timing.outcome.profile, mode)
                self._exemplify(timing, mode)
        else:
            self._observe_request(timing, mode)
            for group in counted_steps(timing.outcome, timing.engine):
                self._observe_phase(group, mode)
        write("instrumentation_seconds_total", perf_counter() - began)

    def failed(self, mode: str, outcome: str) -> None:
        """A request that was accepted, and ended as error, cancelled, timeout or oom."""
        self._series.write("requests_total", 1, mode, outcome)

    def rejected(self, reason: Rejection, mode: str | None) -> None:
        """A request refused before it ran; `mode` where it had named a valid one."""
        self._series.write("requests_rejected_total", 1, reason)
        if mode is not None:
            self._series.write("requests_total", 1, mode, "rejected")

    def connections(self, count: int, most: int) -> None:
        """So many connections are open, of `most` for any request."""
        self._series.write("connections", count)
        self._series.write("connections_max", most)

    def loop_lag(self, seconds: float) -> None:
        """The event loop came to a timer this late."""
        self._series.write("event_loop_lag_seconds", seconds)

    def engine(self, status: EngineStatus) -> None:
        """The engine reported its status, and with it what can be measured here."""
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
        """A mode changed."""
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

        `in_progress` counts the unfinished requests by mode; `waiting` are those of them that have not begun.
        Not `fresh`: it may be that of the last second.
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
        """Each step of a request that ran as a form of its mode that replays graphs was a replay."""
        mode, timings = timing.job.mode, timing.engine
        effect = MODES[mode].effect(self._device_type)
        if effect.graph_replay and timing.outcome.effective == effect.name:
            steps = sum(group.timings.steps for group in counted_steps(timing.outcome, timings))
            self._series.write("cudagraph_replays_total", steps, mode)

    def _observe_request(self, timing: RequestTiming, mode: str) -> None:
        write = self._series.under(mode).write
        for name, seconds in request_seconds(timing, self._splits, self._merges).items():
            if seconds is not None:
                write(name, seconds)

    def _exemplify(self, timing: RequestTiming, mode: str) -> None:
        """Have the histograms that would have counted this request point to its trace."""
        trace, at = trace_of(timing), time()
        if trace is not None:
            for name, seconds in request_seconds(timing, self._splits, self._merges).items():
                if seconds is not None:
                    self._series.exemplify(name, exemplar(trace, seconds, at), mode)

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
