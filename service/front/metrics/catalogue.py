"""Every metric this service exports, as one table: name, type, labels, unit, help, and where it is measured.

Pure data: `series` builds everything from it and refuses a name that is not here; boards may read their
descriptions from it. Names stand without their `launchbound_` prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "summary", "info"]
Start = Literal["always", "timings", "dispatch", "cpu", "cuda", "once measured"]

PREFIX = "launchbound_"
FALLBACK = "fallback"
OUTCOMES = ("ok", "error", "cancelled", "timeout", "oom", "rejected")
PHASES = ("prefill", "decode")
TOKEN_KINDS = ("prompt", "generated")
REJECTIONS = ("queue_full", "too_large", "bad_request", "not_ready", "unauthorised", "draining")
FALLBACK_REASONS = ("graph_skipped", "other")

STEP_BUCKETS = tuple(float(f"{25e-6 * 2 ** (k / 2):.3g}") for k in range(33))
"""25 µs to 1.64 s by factors of √2."""

REQUEST_BUCKETS = (
    0.0005,
    0.0007,
    *(round(step * 10.0**decade, 6) for decade in range(-3, 2) for step in (1, 1.5, 2, 3, 5, 7)),
    100.0,
)
"""0.5 ms to 100 s, six per decade, near to geometric, with the round values that people take as SLO."""

COMPILE_BUCKETS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. `start` says from when its label sets exist at 0, or that it is absent until measured.

    "always": from the start. "timings": from the start, unless instrumentation is turned down. The others as
    "timings", once the engine says that it runs there, else only once it was measured: "dispatch" wherever
    dispatch is known, "cpu" on a CPU where it is (kernel is the rest there), "cuda" on CUDA.
    `of_requests`: observed per request, and so with the mode "fallback" too. A histogram without `buckets`
    takes the configured batch sizes.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    start: Start = "always"
    buckets: tuple[float, ...] = ()
    of_requests: bool = False

    @property
    def unit(self) -> str:
        """The unit in the name ('' for a pure number)."""
        stem = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes") if stem.endswith("_" + unit)), "")

    def label_sets(self, modes: Sequence[str], batches: Sequence[int]) -> Iterator[tuple[str, ...]]:
        """Every combination of label values there can be, for closed labels."""
        values: dict[str, Sequence[str]] = {
            "mode": (*modes, FALLBACK) if self.of_requests else modes,
            "batch": [str(batch) for batch in batches],
            "outcome": OUTCOMES,
            "phase": PHASES,
            "kind": TOKEN_KINDS,
            "reason": FALLBACK_REASONS if "mode" in self.labels else REJECTIONS,
        }
        return product(*(values[label] for label in self.labels))


_PART = " Observed for requests that ended well and were not profiled; one boundary set for all parts."
_ESTIMATE = " On a CPU an estimate (dispatch a lower, kernel an upper one): read its mean, not its quantiles."


def _request(name: str, help_: str, start: Start = "timings") -> MetricSpec:
    return MetricSpec(name, "histogram", ("mode",), help_ + _PART, start, REQUEST_BUCKETS, of_requests=True)


def _step(name: str, kind: Kind, labels: tuple[str, ...], help_: str, start: Start = "always") -> MetricSpec:
    return MetricSpec(
        name, kind, labels, help_, start, STEP_BUCKETS if kind == "histogram" else (), of_requests=True
    )


CATALOGUE: tuple[MetricSpec, ...] = (
    MetricSpec(
        "requests_total",
        "counter",
        ("mode", "outcome"),
        "Requests by mode and outcome, counted when they end; a comparison counts once per run.",
        of_requests=True,
    ),
    MetricSpec(
        "requests_in_progress", "gauge", ("mode",), "Requests accepted and not finished, by mode asked for."
    ),
    MetricSpec(
        "queue_depth",
        "gauge",
        (),
        "Requests accepted and not started: all unfinished but one, which is taken to run.",
    ),
    MetricSpec(
        "requests_rejected_total", "counter", ("reason",), "Requests refused before they ran, by reason."
    ),
    _request(
        "request_duration_seconds",
        "Body parsed until the answer, or a stream's last event, is ready to be serialised.",
        "always",
    ),
    _request("request_queue_seconds", "Waited while the engine was busy.", "always"),
    _request("request_dispatch_seconds", "Host time issuing steps." + _ESTIMATE, "dispatch"),
    _request(
        "request_device_span_seconds",
        "First to last work of each step on the device's stream, gaps included.",
        "cuda",
    ),
    _request("request_kernel_seconds", "The device really ran kernels." + _ESTIMATE, "cpu"),
    _request("request_sync_wait_seconds", "Host blocked on the device.", "cuda"),
    _request("request_other_seconds", "The closing term: tokenise, process border, bookkeeping."),
    _request("time_to_first_token_seconds", "Body parsed until the first token is on the host.", "always"),
    _step(
        "time_per_output_token_seconds",
        "histogram",
        ("mode",),
        "(Duration - time to first token) / (tokens of the longest completion - 1).",
    ),
    _step(
        "step_dispatch_seconds",
        "histogram",
        ("mode", "phase"),
        "Dispatch of one step. On a CPU single "
        "steps are not measured: each request's mean step, once per step.",
        "dispatch",
    ),
    _step("step_device_span_seconds", "histogram", ("mode", "phase"), "Device span of one step.", "cuda"),
    _step(
        "step_batch_dispatch_seconds",
        "summary",
        ("mode", "phase", "batch"),
        "Dispatch per step by batch bucket: exact sums for means." + _ESTIMATE,
        "dispatch",
    ),
    _step(
        "step_batch_kernel_seconds",
        "summary",
        ("mode", "phase", "batch"),
        "Kernel time per step by batch bucket." + _ESTIMATE,
        "cpu",
    ),
    _step(
        "step_batch_wall_seconds",
        "summary",
        ("mode", "phase", "batch"),
        "Wall time per step by batch bucket: exact sums for means.",
    ),
    MetricSpec(
        "step_operators",
        "gauge",
        ("mode", "phase"),
        "Calls of a step into the dispatcher, those "
        "that an operator makes in turn left out, from the last profiled request.",
        "once measured",
    ),
    MetricSpec(
        "step_kernels",
        "gauge",
        ("mode", "phase"),
        "Kernels per step, from the last profiled request.",
        "once measured",
    ),
    MetricSpec(
        "step_launches",
        "gauge",
        ("mode", "phase"),
        "Launch calls per step, from the last profiled request; a graph replay is one.",
        "once measured",
    ),
    MetricSpec(
        "device_bound_index",
        "gauge",
        ("mode", "batch"),
        "Kernel / (kernel + dispatch), from the sums since the start: < 0.2 launch-bound, "
        ">= 0.5 kernel-bound.",
        "once measured",
    ),
    MetricSpec(
        "dispatch_floor_seconds",
        "gauge",
        ("mode", "batch"),
        "Dispatch of one decode step of the hollow twin.",
        "once measured",
    ),
    MetricSpec(
        "tokens_total",
        "counter",
        ("mode", "kind"),
        "Tokens taken in (prompt) and generated.",
        of_requests=True,
    ),
    MetricSpec("batch_size", "histogram", ("mode",), "Sequences per executed batch.", of_requests=True),
    MetricSpec(
        "graph_breaks_total",
        "counter",
        ("mode",),
        "Graph breaks while the mode was made ready, by torch's own count.",
    ),
    MetricSpec(
        "recompiles_total",
        "counter",
        ("mode",),
        "Graphs compiled beyond one per callable while the mode "
        "was made ready, by torch's own count, and later steps refused because they would recompile.",
    ),
    MetricSpec(
        "fallbacks_total",
        "counter",
        ("mode", "reason"),
        "Requests that ran as another form than declared, as seen in profiled requests.",
    ),
    MetricSpec(
        "cudagraph_captures_total",
        "counter",
        ("mode",),
        "CUDA graphs captured at warm-up: one per callable "
        "(phase and batch bucket, and the floor's hollow twins) of a mode that replays them.",
        "cuda",
    ),
    MetricSpec(
        "cudagraph_replays_total",
        "counter",
        ("mode",),
        "Steps, prefill and decode, of requests that ended "
        "well and ran as the form of their mode that replays a graph per step.",
        "cuda",
    ),
    MetricSpec(
        "compile_seconds",
        "histogram",
        ("mode",),
        "One compilation: first call of one callable.",
        "always",
        COMPILE_BUCKETS,
    ),
    MetricSpec(
        "warmup_seconds",
        "gauge",
        ("mode", "cache"),
        "Warm-up of a mode, by whether its code was cached; 'none' where it compiles nothing.",
        "once measured",
    ),
    MetricSpec("mode_ready", "gauge", ("mode",), "1 if the mode is warm, in parity and serving, else 0."),
    MetricSpec(
        "mode_parity_max_abs_logit_difference",
        "gauge",
        ("mode",),
        "Largest logit difference from eager at warm-up.",
        "once measured",
    ),
    MetricSpec(
        "mode_effective_info",
        "info",
        ("mode", "effective", "reason"),
        "What a mode really does here, and why.",
        "once measured",
    ),
    MetricSpec(
        "memory_allocated_bytes",
        "gauge",
        ("stat",),
        "Device memory in live tensors, now (current) or at most in the engine's life (peak).",
        "once measured",
    ),
    MetricSpec(
        "memory_reserved_bytes",
        "gauge",
        ("stat",),
        "Device memory that the caching allocator holds, in use or kept for later.",
        "once measured",
    ),
    MetricSpec(
        "memory_active_bytes",
        "gauge",
        ("stat",),
        "Device memory in live tensors or waiting for a stream to be done with it.",
        "once measured",
    ),
    MetricSpec(
        "memory_inactive_split_bytes",
        "gauge",
        ("stat",),
        "Device memory in unused parts of blocks that are otherwise in use: lost to fragmentation.",
        "once measured",
    ),
    MetricSpec(
        "memory_alloc_retries_total",
        "counter",
        (),
        "Allocations that had to be tried again after cached blocks were given back.",
        "cuda",
    ),
    MetricSpec(
        "memory_ooms_total",
        "counter",
        (),
        "Allocations that failed for want of device memory, in requests or at warm-up.",
        "cuda",
    ),
    MetricSpec(
        "engine_restarts_total", "counter", (), "Times the engine process ended and was started again."
    ),
    MetricSpec("engine_up", "gauge", (), "1 while the engine process answers, else 0."),
    MetricSpec("profiled_requests_total", "counter", ("mode",), "Requests run under the profiler."),
    MetricSpec(
        "instrumentation_seconds_total", "counter", (), "Time the front spent observing these metrics."
    ),
    MetricSpec(
        "engine_involuntary_switches_total",
        "counter",
        (),
        "Times the engine was taken off its core in a request.",
    ),
    MetricSpec(
        "build_info",
        "info",
        ("version", "commit", "torch", "cuda", "device"),
        "What runs here.",
        "once measured",
    ),
    MetricSpec(
        "model_info",
        "info",
        ("name", "parameters", "dtype", "layers", "width"),
        "What is served.",
        "once measured",
    ),
)
