"""The Load and memory board: client beside server, queue and refusals, processes and device memory."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.frame import board
from dashboards.panels import Panel, PanelStyle, Query, graph, number
from dashboards.promql import HERE, NOW, OF_MODE, SHOWN, mean, quantile, series, total_rate
from dashboards.theme import AT_LEAST_ONE, NONE_EXPECTED, OUTCOME_COLOURS, SHARE_LOST, SIDE_COLOURS

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
            PanelStyle("Client rate over server rate", "reqps", width=6),
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
