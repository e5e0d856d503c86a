"""Every metric this service exports, as one table: name, labels, from when it exists, help.

Pure data: `series` builds everything from it and refuses a name that is not here. Names stand without PREFIX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, get_args

from service.front.errors import Rejection
from service.modes import FALLBACK, MODES
from service.records import SIDES
from service.workloads import Workload

Kind = Literal["counter", "gauge", "histogram", "summary", "info"]
Start = Literal[
    "always", "tokens", "timings", "dispatch", "cpu", "sampled", "cuda", "merged", "once measured"
]

OUTCOMES = ("ok", "error", "cancelled", "timeout", "oom", "rejected")
TOKEN_KINDS = ("prompt", "generated")
REJECTIONS: tuple[str, ...] = get_args(Rejection)
FALLBACK_REASONS = ("graph_skipped", "other")


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. `start` is when its label sets exist at 0, or that it is absent until measured.

    "always": from the start. "tokens": from the start, of a model whose requests have tokens. "timings": from
    the start, unless instrumentation is turned down. The others as "timings", once the engine reports that it
    runs there, else only once it was measured: "dispatch" wherever dispatch is known, "cpu" on a CPU where it
    is (kernel is the rest there), "sampled" there and never elsewhere, "cuda" on CUDA. "merged": from the
    start of an engine that merges requests.
    `of_requests`: observed per request, and so on CUDA with the mode "fallback" too: only a skipped graph
    makes a request run as another form than its mode declared. `of_compilers`: only of modes that compile on
    some device. A histogram without `buckets` takes the configured batch sizes. `of_module`: the help where a
    module is served, if it is another.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    start: Start = "always"
    buckets: tuple[float, ...] = ()
    of_requests: bool = False
    of_compilers: bool = False
    of_module: str = ""

    @property
    def unit(self) -> str:
        stem = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes") if stem.endswith("_" + unit)), "")

    def label_sets(
        self, modes: Sequence[str], batches: Sequence[int], falls_back: bool, phases: Sequence[str]
    ) -> Iterator[tuple[str, ...]]:
        values: dict[str, Sequence[str]] = {
            "mode": self._modes(modes, falls_back),
            "batch": [str(batch) for batch in batches],
            "outcome": OUTCOMES,
            "phase": phases,
            "kind": TOKEN_KINDS,
            "side": SIDES,
            "reason": FALLBACK_REASONS if "mode" in self.labels else REJECTIONS,
        }
        return product(*(values[label] for label in self.labels))

    def _modes(self, modes: Sequence[str], falls_back: bool) -> Sequence[str]:
        if self.of_compilers:
            return [name for name in modes if MODES[name].cpu.compiles or MODES[name].cuda.compiles]
        return (*modes, FALLBACK) if self.of_requests and falls_back else modes


PREFIX = "launchbound_"

STEP_BUCKETS = tuple(float(f"{25e-6 * 2 ** (k / 2):.3g}") for k in range(33))
"""25 µs to 1.64 s by factors of √2."""

TOKEN_BUCKETS = STEP_BUCKETS[::2]
"""25 µs to 1.64 s by factors of 2: the boards show the mean."""

REQUEST_BUCKETS = (
    0.0005,
    *(round(step * 10.0**decade, 6) for decade in range(-3, 2) for step in (1, 2, 3, 5)),
    100.0,
    200.0,
)
"""0.5 ms to 200 s, four per decade, near to geometric, with the round values that people take as SLO; the
last is above the timeout of requests, where that is the default."""


def request_buckets(timeout_seconds: float) -> tuple[float, ...]:
    """REQUEST_BUCKETS, gone on until the last is above the timeout: what ends well is never beyond it."""
    bounds = list(REQUEST_BUCKETS)
    while bounds[-1] <= timeout_seconds:
        bounds.append(bounds[-4] * 10)
    return tuple(bounds)


COMPILE_BUCKETS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)

LAG_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_PART = " Observed for requests that ended well, not profiled or sampled; one boundary set for all parts."
_ESTIMATE = " On a CPU by the shares of samples: read its mean, not its quantiles."


def _row(kind: Kind, name: str, labels: str, start: Start, help_: str, **more: Any) -> MetricSpec:  # noqa: ANN401
    return MetricSpec(name, kind, tuple(labels.split()), help_, start, **more)


def _request(name: str, start: Start, help_: str) -> MetricSpec:
    return _row("histogram", name, "mode", start, help_ + _PART, buckets=REQUEST_BUCKETS, of_requests=True)


def _step(name: str, kind: Kind, labels: str, start: Start, help_: str, of_module: str = "") -> MetricSpec:
    buckets = STEP_BUCKETS if kind == "histogram" else ()
    return _row(kind, name, labels, start, help_, buckets=buckets, of_requests=True, of_module=of_module)


CATALOGUE: tuple[MetricSpec, ...] = (
    _row("counter", "requests_total", "mode outcome", "always",
        "Requests by mode and outcome, counted when they end; a comparison counts once per run.",
        of_requests=True),
    _row("gauge", "requests_in_progress", "mode", "always",
        "Requests accepted and not finished, by requested mode."),
    _row("gauge", "queue_depth", "", "always",
        "Requests accepted and not started: all unfinished but one, which is taken to run. Where requests "
        "are merged, all that the engine has not begun."),
    _row("counter", "requests_rejected_total", "reason", "always",
        "Requests refused before they ran, by reason."),
    _row("gauge", "connections", "", "once measured",
        "Open connections, those of scrapes and probes beyond connections_max included."),
    _row("gauge", "connections_max", "", "once measured",
        "Connections for any request: LAUNCHBOUND_MAX_CONNECTIONS, or as many as open files allow."),
    _request("request_duration_seconds", "always",
        "Body parsed until the answer, or a stream's last event, is ready to be serialised."),
    _request("request_queue_seconds", "always", "Waited while the engine was busy."),
    _request("request_dispatch_seconds", "dispatch", "Host time issuing steps." + _ESTIMATE),
    _request("request_device_span_seconds", "cuda",
        "The device's clock around each step's call, the time included in which it idles while the host "
        "issues."),
    _request("request_kernel_seconds", "cpu", "The device really ran kernels." + _ESTIMATE),
    _request("request_sync_wait_seconds", "cuda", "Host blocked on the device."),
    _request("request_stall_seconds", "merged",
        "After its first token a request stood still while others, merged with it, were prefilled."),
    _request("request_other_seconds", "timings",
        "The closing term: tokenise, transport between processes, bookkeeping. Like dispatch and kernel not "
        "observed for requests that a mode served before its steps had samples."),
    _request("time_to_first_token_seconds", "tokens", "Body parsed until the first token is on the host."),
    _row("histogram", "time_per_output_token_seconds", "mode", "tokens",
        "(Duration - time to first token) / (tokens of the longest completion - 1).",
        buckets=TOKEN_BUCKETS, of_requests=True),
    _step("step_dispatch_seconds", "histogram", "mode phase", "cuda",
        "Dispatch of one step. On a CPU single steps are not measured: step_batch_dispatch_seconds has their "
        "mean."),
    _step("step_device_span_seconds", "histogram", "mode phase", "cuda", "Device span of one step."),
    _step("step_period_seconds", "histogram", "mode phase", "cuda",
        "From the beginning of one step's call to that of the next, the last one's to the end of its "
        "bookkeeping: the time between two tokens in the engine.",
        "From the beginning of one call to that of the next, the last one's to the end of its bookkeeping."),
    _step("step_batch_dispatch_seconds", "summary", "mode phase batch", "dispatch",
        "Dispatch per step by batch bucket: exact sums for means." + _ESTIMATE),
    _step("step_batch_kernel_seconds", "summary", "mode phase batch", "cpu",
        "Kernel time per step by batch bucket." + _ESTIMATE),
    _step("step_batch_wall_seconds", "summary", "mode phase batch", "always",
        "Dispatch and kernel (or wait) per step by batch bucket: exact sums for means. What the engine does "
        "between steps is left out."),
    _step("step_batch_period_seconds", "summary", "mode phase batch", "always",
        "All the time per step by batch bucket, from call to call: exact sums for means."),
    _step("step_batch_rows", "summary", "mode batch", "always",
        "Sequences per decode step by batch bucket, the rest of which is padding: exact sums for means.",
        "Samples per call by batch size: exact sums for means."),
    _row("gauge", "step_device_seconds", "mode phase batch", "once measured",
        "One step on the device, by calls queued back to back at warm-up, without the profiler: a decode "
        "step that reads 64 positions, a prefill of 32 tokens per row, or as many as there are. Absent where "
        "the host could not queue ahead.",
        of_module="One call on the device, by calls queued back to back at warm-up, without the profiler. "
        "Absent where the host could not queue ahead."),
    _row("gauge", "step_kernel_seconds", "mode phase batch", "once measured",
        "Kernel time of one step of the size that step_device_seconds is of, by steps profiled at warm-up "
        "and by profiled requests."),
    _row("gauge", "profiler_dispatch_ratio", "mode", "once measured",
        "Dispatch of a decode step since the profiler's first session over before it, at the smallest "
        "batch.",
        of_module="Dispatch of a call since the profiler's first session over before it, at the smallest "
        "batch."),
    _row("gauge", "step_operators", "mode phase", "once measured",
        "Top-level dispatcher calls of a step, from the newest that was profiled."),
    _row("gauge", "step_kernels", "mode phase", "once measured",
        "Kernels per step, from the newest that was profiled."),
    _row("gauge", "step_launches", "mode phase", "once measured",
        "Launch calls per step, from the newest that was profiled; a graph replay is one."),
    _row("gauge", "device_bound_index", "mode batch", "once measured",
        "Kernel share of decode, kernel / (kernel + dispatch): by the newest samples; on CUDA of the newest "
        "request, where < 0.2 is launch-bound, >= 0.5 kernel-bound.",
        of_module="Kernel share of a call, kernel / (kernel + dispatch): by the newest samples; on CUDA of "
        "the newest request, where < 0.2 is launch-bound, >= 0.5 kernel-bound."),
    _row("counter", "samples_total", "mode phase batch side", "sampled",
        "Samples of the engine's thread within steps: in a kernel, in the host's code, in the operating "
        "system, or in code that no rule knows."),
    _row("counter", "tokens_total", "mode kind", "tokens",
        "Tokens taken in (prompt) and generated.", of_requests=True),
    _row("histogram", "batch_size", "mode", "always",
        "Prompts per request. Where requests are merged, step_batch_rows has what a step ran with.",
        of_requests=True, of_module="Samples per call."),
    _row("counter", "graph_breaks_total", "mode", "always",
        "Graph breaks while the mode was made ready, by torch's own count.",
        of_module="Graph breaks of the mode's callable that has most of them."),
    _row("counter", "recompiles_total", "mode", "always",
        "Graphs compiled beyond one per callable while the mode was made ready, by torch's own count, and "
        "later steps refused because they would recompile.",
        of_module="Graphs compiled after the first calls of the mode's callables, and later calls refused "
        "because they would recompile."),
    _row("counter", "fallbacks_total", "mode reason", "always",
        "Requests that ran as another form than declared, as seen in profiled requests."),
    _row("counter", "cudagraph_captures_total", "mode", "cuda",
        "CUDA graphs captured at warm-up: one per shape (phase, batch bucket, prefill length and reach of "
        "attention) of a mode that replays them.",
        of_module="CUDA graphs captured at warm-up: one per batch size of a mode that replays them."),
    _row("counter", "cudagraph_replays_total", "mode", "cuda",
        "Steps, prefill and decode, of requests that ended well and ran as the form of their mode that "
        "replays a graph per step.",
        of_module="Calls of requests that ended well and ran as the form of their mode that replays a graph "
        "per call."),
    _row("histogram", "compile_seconds", "mode", "always",
        "One compilation: first call of one callable.", buckets=COMPILE_BUCKETS, of_compilers=True),
    _row("gauge", "warmup_seconds", "mode cache", "once measured",
        "Warm-up of a mode until it serves, its parity check included, by whether its code was cached; "
        "'none' where it compiles nothing."),
    _row("gauge", "mode_ready", "mode", "always", "1 if the mode is warm, in parity and serving, else 0."),
    _row("gauge", "mode_failed", "mode", "always",
        "1 if the mode failed: it serves nothing until the engine is restarted. Else 0."),
    _row("gauge", "mode_parity_max_abs_logit_difference", "mode", "once measured",
        "Largest logit difference from eager at warm-up.",
        of_module="Largest difference of an output from eager's at warm-up."),
    _row("info", "mode_effective_info", "mode effective reason", "once measured",
        "What a mode really does here, and why."),
    _row("gauge", "memory_allocated_bytes", "stat", "once measured",
        "Device memory in live tensors, now (current) or at most since the engine started (peak)."),
    _row("gauge", "memory_reserved_bytes", "stat", "once measured",
        "Device memory that the caching allocator holds, in use or kept for later."),
    _row("gauge", "memory_active_bytes", "stat", "once measured",
        "Device memory in live tensors or waiting for a stream to be done with it."),
    _row("gauge", "memory_inactive_split_bytes", "stat", "once measured",
        "Device memory in unused parts of blocks that are otherwise in use: lost to fragmentation."),
    _row("counter", "memory_alloc_retries_total", "", "cuda",
        "Allocations of device memory that had to be tried again after cached blocks were given back."),
    _row("counter", "memory_ooms_total", "", "cuda",
        "Allocations that failed for want of device memory, in requests or at warm-up."),
    _row("counter", "engine_restarts_total", "", "always",
        "Times the engine process ended and was started again."),
    _row("gauge", "engine_up", "", "always", "1 while the engine process answers, else 0."),
    _row("counter", "profiled_requests_total", "mode", "always",
        "Requests run under the profiler, or sampled."),
    _row("counter", "instrumentation_seconds_total", "", "always",
        "Time the front spent observing these metrics."),
    _row("histogram", "event_loop_lag_seconds", "", "always",
        "How late the front came to a timer of 250 ms, because one piece of work held all others. What takes "
        "longer than that is always seen, what is shorter as often as its share of the time.",
        buckets=LAG_BUCKETS),
    _row("counter", "engine_involuntary_switches_total", "", "always",
        "Times the engine was taken off its core in a request."),
    _row("info", "build_info", "version commit torch cuda device", "once measured", "What runs here."),
    _row("info", "model_info", "name parameters dtype layers width", "once measured", "What is served."),
)  # fmt: skip


def rows_for(workload: Workload) -> list[MetricSpec]:
    """The catalogue, with the help of each row in the words of what is served."""
    return [row if workload.tokens else replace(row, help=row.of_module or row.help) for row in CATALOGUE]
