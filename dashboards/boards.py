"""The three boards: Overview, Dispatch and kernels, Load and memory."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.panels import (
    Panel,
    PanelStyle,
    Query,
    bars_by_batch,
    bars_by_mode,
    board,
    graph,
    grid,
    number,
    repeated,
)
from dashboards.promql import (
    DECODE,
    HERE,
    NOW,
    OF_MODE,
    PREFILL,
    SHOWN,
    WHERE_STEPS_ARE_MEASURED,
    mean,
    mean_since_start,
    quantile,
    request_parts,
    series,
    speedup_over_eager,
    total_rate,
)
from dashboards.theme import (
    AT_LEAST_ONE,
    NONE_EXPECTED,
    OUTCOME_COLOURS,
    PARITY,
    PART_COLOURS,
    SAMPLE_COLOURS,
    SHARE_KEPT,
    SHARE_LOST,
    SIDE_COLOURS,
)

FAILED = OF_MODE + ', outcome=~"error|timeout|oom"'
RUN_TO_AN_END = OF_MODE + ', outcome=~"ok|error|timeout|oom"'
GENERATED = OF_MODE + ', kind="generated"'


def overview() -> Dashboard:
    """Build the board."""
    rows = {
        "Now": _now(),
        "By mode, over the time shown": [_table(), _split(), _speedup()],
        "Traffic": _traffic(),
        "Latency of whole requests": _latency(),
        "Tokens": _tokens(),
    }
    return board("overview", rows)


def _now() -> list[Panel]:
    ended = total_rate("requests_total", "")
    failures = total_rate("requests_total", "", FAILED)
    failed = f"{failures} / ({total_rate('requests_total', '', RUN_TO_AN_END)} > 0)"
    in_time = total_rate("request_duration_seconds_bucket", "", OF_MODE + ', le="$slo"')
    # The histogram counts good endings only: a failed request is one that was not answered in time.
    due = f"{total_rate('request_duration_seconds_count', '')} + {failures}"
    generated = total_rate("tokens_total", "", GENERATED)
    engine = Query(f"min({series('engine_up', HERE)})", "up")
    return [
        number(PanelStyle("Engine", "none", AT_LEAST_ONE, 3, 4, "no service"), engine),
        number(
            PanelStyle("Modes ready", "none", AT_LEAST_ONE, 3, 4, "none yet"),
            Query(f"sum({series('mode_ready')})", "ready"),
        ),
        number(
            PanelStyle("Modes failed", "none", NONE_EXPECTED, 3, 4, "no service"),
            Query(f"sum({series('mode_failed')})", "failed"),
        ),
        number(PanelStyle("Requests", "reqps", width=4, height=4), Query(ended, "requests")),
        number(PanelStyle("Failed", "percentunit", SHARE_LOST, 4, 4), Query(failed, "failed")),
        number(
            PanelStyle("Within SLO", "percentunit", SHARE_KEPT, 4, 4),
            Query(f"{in_time} / (({due}) > 0)", "in time"),
        ),
        number(PanelStyle("Generated", "tokens/s", width=3, height=4), Query(generated, "tokens")),
    ]


def _table() -> Panel:
    def seconds(name: str, column: str, labels: str = OF_MODE) -> Query:
        return Query(mean(name, "mode", labels, SHOWN), column)

    columns = [
        Query(f"sum by (mode) (increase({series('requests_total')}[{SHOWN}])) > 0", "requests"),
        Query(speedup_over_eager(by_batch=False), "speed-up"),
        seconds("step_batch_period_seconds", "decode step", OF_MODE + DECODE),
        seconds("request_duration_seconds", "request mean"),
        Query(quantile(0.95, "request_duration_seconds", window=SHOWN), "request p95"),
        seconds("time_to_first_token_seconds", "first token"),
        seconds("request_dispatch_seconds", "dispatch"),
        seconds("request_kernel_seconds", "kernel"),
    ]
    units = {column.legend: "s" for column in columns} | {"requests": "short", "speed-up": "suffix:×"}
    return grid(PanelStyle("Modes", "none", width=24), *columns, units=units)


def _split() -> Panel:
    parts = [Query(expr, part) for part, expr in request_parts(SHOWN).items()]
    return bars_by_mode(PanelStyle("Where a mean request went", "s", width=12), *parts, colours=PART_COLOURS)


def _speedup() -> Panel:
    style = PanelStyle("Decode speed-up over eager", "suffix:×", AT_LEAST_ONE, width=12)
    return bars_by_batch(style, Query(speedup_over_eager(by_batch=True), "{{mode}}"))


def _traffic() -> list[Panel]:
    failed = total_rate("requests_total", "mode", FAILED)
    refused = total_rate("requests_rejected_total", "reason", HERE)
    return [
        graph(PanelStyle("Rate", "reqps"), Query(total_rate("requests_total"), "{{mode}}")),
        graph(PanelStyle("Failed requests", "reqps", NONE_EXPECTED), Query(failed, "{{mode}}")),
        graph(PanelStyle("Refused", "reqps", NONE_EXPECTED), Query(refused, "{{reason}}")),
    ]


def _latency() -> list[Panel]:
    return [
        graph(
            PanelStyle(f"Latency p{round(q * 100)}", "s"),
            Query(quantile(q, "request_duration_seconds"), "{{mode}}", exemplars=q == 0.95),
        )
        for q in (0.5, 0.95, 0.99)
    ]


def _tokens() -> list[Panel]:
    first = "time_to_first_token_seconds"
    return [
        graph(
            PanelStyle("Time to first token", "s"),
            Query(quantile(0.5, first), "{{mode}} p50"),
            Query(quantile(0.95, first), "{{mode}} p95"),
            dashed="p95",
        ),
        graph(
            PanelStyle("Time per output token", "s"), Query(mean("time_per_output_token_seconds"), "{{mode}}")
        ),
        graph(
            PanelStyle("Tokens generated", "tokens/s"),
            Query(total_rate("tokens_total", "mode", GENERATED), "{{mode}}"),
        ),
    ]


def dispatch() -> Dashboard:
    """Build the board."""
    rows = {
        "Kernel share": [_dispatched(), _kernel_share(), _samples()],
        "One step, by batch, over the time shown": _steps(),
        "On a GPU": _device(),
        "What a step issues": _issued(),
        "Compiler": _compiler(),
        "One mode at a time": [_by_part()],
    }
    return board("dispatch", rows)


def _dispatched() -> Panel:
    dispatched = total_rate("request_dispatch_seconds_sum")
    taken = total_rate("request_duration_seconds_sum")
    return graph(
        PanelStyle("Dispatch share", "percentunit"),
        Query(f"{dispatched} / ({taken} > 0)", "{{mode}}"),
    )


def _kernel_share() -> Panel:
    share = Query(f"avg by (mode, batch) ({series('device_bound_index')})", "{{mode}}")
    return bars_by_batch(PanelStyle("Kernel share", "percentunit"), share)


def _samples() -> Panel:
    style = PanelStyle("Samples", "cps", empty="no samples")
    return graph(
        style, Query(total_rate("samples_total", "side"), "{{side}}"), colours=SAMPLE_COLOURS, stacked=True
    )


def _steps() -> list[Panel]:
    shown = {
        "Decode step": ("period", DECODE),
        "Dispatch of a decode step": ("dispatch", DECODE),
        "Kernel of a decode step": ("kernel", DECODE),
        "Prefill step": ("wall", PREFILL),
    }
    return [
        bars_by_batch(
            PanelStyle(title, "s", width=12),
            Query(mean(f"step_batch_{part}_seconds", "mode, batch", OF_MODE + phase, SHOWN), "{{mode}}"),
        )
        for title, (part, phase) in shown.items()
    ]


def _device() -> list[Panel]:
    decode = OF_MODE + DECODE
    dispatched = quantile(0.5, "step_dispatch_seconds", labels=decode, only=WHERE_STEPS_ARE_MEASURED)
    spanned = quantile(0.5, "step_device_span_seconds", labels=decode)
    return [
        graph(
            PanelStyle("Dispatch against device span", "s", empty="no GPU"),
            Query(dispatched, "{{mode}} dispatch"),
            Query(spanned, "{{mode}} span"),
            dashed="span",
        ),
        graph(
            PanelStyle("Device span p95", "s", empty="no GPU"),
            Query(quantile(0.95, "step_device_span_seconds", labels=decode), "{{mode}}"),
        ),
        graph(
            PanelStyle("Sync wait", "s", empty="no GPU"), Query(mean("request_sync_wait_seconds"), "{{mode}}")
        ),
        graph(
            PanelStyle("Decode step p95", "s", empty="no GPU"),
            Query(quantile(0.95, "step_period_seconds", labels=decode), "{{mode}}"),
        ),
        *_found_at_warm_up(decode),
    ]


def _found_at_warm_up(decode: str) -> list[Panel]:
    """Calls queued back to back, profiled steps, the profiler's cost."""
    shown = {"Decode step on the device": "step_device_seconds", "Profiled kernels": "step_kernel_seconds"}
    by_batch = [
        bars_by_batch(
            PanelStyle(title, "s", empty="no GPU"),
            Query(f"avg by (mode, batch) ({series(name, decode)})", "{{mode}}"),
        )
        for title, name in shown.items()
    ]
    cost = Query(f"avg by (mode) ({series('profiler_dispatch_ratio')})", "ratio")
    return [
        *by_batch,
        bars_by_mode(PanelStyle("Dispatch after the profiler", "suffix:×", width=24, empty="no GPU"), cost),
    ]


def _issued() -> list[Panel]:
    counts = [
        Query(f"max by (mode, phase) ({series(f'step_{what}')})", what)
        for what in ("operators", "kernels", "launches")
    ]
    captured = f"sum by (mode) ({series('cudagraph_captures_total')}) > 0"
    return [
        grid(PanelStyle("Operators, kernels, launches", "none", empty="no profiled request"), *counts),
        graph(
            PanelStyle("Graph replays", "cps", empty="no GPU"),
            Query(total_rate("cudagraph_replays_total"), "{{mode}}"),
        ),
        bars_by_mode(PanelStyle("Graphs captured", "none", empty="no graphs"), Query(captured, "graphs")),
    ]


def _compiler() -> list[Panel]:
    fallbacks = total_rate("fallbacks_total")
    warm_up = f"max by (mode, cache) ({series('warmup_seconds')})"
    effective = f"max by (mode, effective, reason) ({series('mode_effective_info')})"
    parity = f"max by (mode) ({series('mode_parity_max_abs_logit_difference')})"
    return [
        graph(
            PanelStyle("Graph breaks", "cps", NONE_EXPECTED),
            Query(total_rate("graph_breaks_total"), "{{mode}}"),
        ),
        graph(
            PanelStyle("Recompiles", "cps", NONE_EXPECTED), Query(total_rate("recompiles_total"), "{{mode}}")
        ),
        graph(PanelStyle("Fallbacks", "reqps", NONE_EXPECTED), Query(fallbacks, "{{mode}}")),
        bars_by_mode(
            PanelStyle("Compilations", "s", empty="nothing compiled"),
            Query(mean_since_start("compile_seconds"), "seconds"),
        ),
        grid(PanelStyle("Warm-up", "s", empty="still warming"), Query(warm_up, "seconds")),
        grid(
            PanelStyle("Parity", "sci", PARITY, empty="not measured yet"), Query(parity, "largest difference")
        ),
        grid(
            PanelStyle("What each mode really runs", "none", width=24, empty="still warming"),
            Query(effective, ""),
        ),
    ]


def _by_part() -> Panel:
    parts = [Query(expr, part) for part, expr in request_parts(NOW).items()]
    style = PanelStyle("Request time by part", "s", width=24)
    return repeated(graph(style, *parts, colours=PART_COLOURS, stacked=True))


CLIENT = 'mode=~"$mode"'
NO_CLIENT = "no load generator"


def load() -> Dashboard:
    """Build the board."""
    rows = {
        "Load generator and service": _client_and_server(),
        "Queue": _queue(),
        "Outcomes": _outcomes(),
        "Processes": _processes(),
        "Device memory": _memory(),
    }
    return board("load", rows)


def _client_and_server() -> list[Panel]:
    sent = total_rate("loadtest_requests_total", "", CLIENT)
    seen = mean("loadtest_latency_seconds", "", CLIENT)
    p95 = quantile(0.95, "loadtest_latency_seconds", labels=CLIENT)
    return [
        graph(
            PanelStyle("Users", "none", width=6, empty=NO_CLIENT),
            Query(f"sum({series('loadtest_users', '')})", "users"),
            colours=SIDE_COLOURS,
        ),
        graph(
            PanelStyle("Client and server rate", "reqps", width=6),
            Query(sent, "client"),
            Query(total_rate("requests_total", ""), "server"),
            colours=SIDE_COLOURS,
        ),
        graph(
            PanelStyle("Client latency over server latency", "s", width=6),
            Query(seen, "client"),
            Query(mean("request_duration_seconds", ""), "server"),
            colours=SIDE_COLOURS,
        ),
        graph(PanelStyle("Client p95", "s", width=6, empty=NO_CLIENT), Query(p95, "{{mode}}")),
    ]


def _queue() -> list[Panel]:
    refused = total_rate("requests_rejected_total", "reason", HERE)
    progress = f"sum by (mode) ({series('requests_in_progress')})"
    return [
        graph(
            PanelStyle("Queue depth", "none", width=6),
            Query(f"sum by (instance) ({series('queue_depth', HERE)})", "{{instance}}"),
        ),
        graph(PanelStyle("In progress", "none", width=6), Query(progress, "{{mode}}")),
        graph(PanelStyle("Queue time", "s", width=6), Query(mean("request_queue_seconds"), "{{mode}}")),
        graph(PanelStyle("Refused by reason", "reqps", NONE_EXPECTED, 6), Query(refused, "{{reason}}")),
    ]


def _outcomes() -> list[Panel]:
    return [
        graph(
            PanelStyle("Outcomes", "reqps"),
            Query(total_rate("requests_total", "outcome"), "{{outcome}}"),
            colours=OUTCOME_COLOURS,
        ),
        graph(
            PanelStyle("Sequences per decode step", "none"),
            Query(mean("step_batch_rows"), "{{mode}}"),
            Query(mean("batch_size"), "{{mode}}, per request"),
        ),
        graph(
            PanelStyle("Profiled or sampled requests", "reqps"),
            Query(total_rate("profiled_requests_total"), "{{mode}}"),
        ),
    ]


def _processes() -> list[Panel]:
    observing = total_rate("instrumentation_seconds_total", "", HERE)
    restarts = f"sum(increase({series('engine_restarts_total', HERE)}[{SHOWN}]))"
    switches = total_rate("engine_involuntary_switches_total", "instance", HERE)
    lag = quantile(0.99, "event_loop_lag_seconds", "", HERE)
    per_second = f"{observing} / ({total_rate('request_duration_seconds_sum', '', HERE)} > 0)"
    return [
        graph(
            PanelStyle("Engine up", "none", AT_LEAST_ONE, 4),
            Query(f"min by (instance) ({series('engine_up', HERE)})", "{{instance}}"),
        ),
        number(
            PanelStyle("Engine restarts", "none", NONE_EXPECTED, 4, empty="no service"),
            Query(restarts, "restarts"),
        ),
        graph(PanelStyle("Involuntary switches", "cps", width=5), Query(switches, "{{instance}}")),
        graph(
            PanelStyle("Instrumentation", "percentunit", SHARE_LOST, 5), Query(per_second, "of request time")
        ),
        graph(PanelStyle("Event loop lag", "s", width=6), Query(lag, "p99")),
        graph(
            PanelStyle("Connections", "none", width=6),
            Query(f"max by (instance) ({series('connections', HERE)})", "{{instance}}"),
            Query(f"max by (instance) ({series('connections_max', HERE)})", "most, {{instance}}"),
        ),
    ]


def _memory() -> list[Panel]:
    kinds = ("reserved", "allocated", "active", "inactive_split")

    def allocator(stat: str) -> list[Query]:
        labels = HERE + f', stat="{stat}"'
        return [
            Query(f"sum by (instance) ({series(f'memory_{kind}_bytes', labels)})", f"{{{{instance}}}} {kind}")
            for kind in kinds
        ]

    out_of_memory = total_rate("requests_total", "mode", OF_MODE + ', outcome="oom"', NOW)
    retries = total_rate("memory_alloc_retries_total", "instance", HERE)
    failures = total_rate("memory_ooms_total", "instance", HERE)
    return [
        graph(PanelStyle("Allocator", "bytes", empty="no GPU"), *allocator("current")),
        graph(PanelStyle("Allocator peak", "bytes", empty="no GPU"), *allocator("peak")),
        graph(
            PanelStyle("Allocator retries", "cps", NONE_EXPECTED, empty="no GPU"),
            Query(retries, "{{instance}}"),
        ),
        graph(
            PanelStyle("Failed allocations", "cps", NONE_EXPECTED, empty="no GPU"),
            Query(failures, "{{instance}}"),
        ),
        graph(PanelStyle("Out of memory", "reqps", NONE_EXPECTED), Query(out_of_memory, "{{mode}}")),
        graph(
            PanelStyle("GPU utilisation", "percent", empty="no GPU exporter"),
            Query("max by (gpu) (DCGM_FI_DEV_GPU_UTIL{})", "GPU {{gpu}}"),
        ),
    ]
