"""The three boards, written to dashboards/grafana/*.json: `python -m dashboards.boards`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.panels import Panel, bars_by_batch, bars_by_mode, board, graph, grid, number
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
MODE = "{{mode}}"
INSTANCE = "{{instance}}"
NO_GPU = "no GPU"


def overview() -> Dashboard:
    rows = {
        "Now": _now(),
        "By mode, over the time shown": _by_mode(),
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
    kept = f"{in_time} / (({due}) > 0)"
    generated = total_rate("tokens_total", "", GENERATED)
    engine, ready, broken = (
        f"min({series('engine_up', HERE)})", f"sum({series('mode_ready')})", f"sum({series('mode_failed')})"
    )  # fmt: skip
    return [
        number("Engine", "none", {"up": engine}, scale=AT_LEAST_ONE, width=3, empty="no service"),
        number("Modes ready", "none", {"ready": ready}, scale=AT_LEAST_ONE, width=3, empty="none yet"),
        number("Modes failed", "none", {"failed": broken}, scale=NONE_EXPECTED, width=3, empty="no service"),
        number("Requests", "reqps", {"requests": ended}, width=4),
        number("Failed", "percentunit", {"failed": failed}, scale=SHARE_LOST, width=4),
        number("Within SLO", "percentunit", {"in time": kept}, scale=SHARE_KEPT, width=4),
        number("Generated", "tokens/s", {"tokens": generated}, width=3),
    ]


def _by_mode() -> list[Panel]:
    def seconds(name: str, labels: str = OF_MODE) -> str:
        return mean(name, "mode", labels, SHOWN)

    columns = {
        "requests": f"sum by (mode) (increase({series('requests_total')}[{SHOWN}])) > 0",
        "speed-up": speedup_over_eager(by_batch=False),
        "decode step": seconds("step_batch_period_seconds", OF_MODE + DECODE),
        "request mean": seconds("request_duration_seconds"),
        "request p95": quantile(0.95, "request_duration_seconds", window=SHOWN),
        "first token": seconds("time_to_first_token_seconds"),
        "dispatch": seconds("request_dispatch_seconds"),
        "kernel": seconds("request_kernel_seconds"),
    }
    units = dict.fromkeys(columns, "s") | {"requests": "short", "speed-up": "suffix:×"}
    parts, gain = request_parts(SHOWN), {MODE: speedup_over_eager(by_batch=True)}
    return [
        grid("Modes", "none", columns, units=units, width=24),
        bars_by_mode("Where a mean request went", "s", parts, colours=PART_COLOURS, width=12),
        bars_by_batch("Decode speed-up over eager", "suffix:×", gain, scale=AT_LEAST_ONE, width=12),
    ]


def _traffic() -> list[Panel]:
    failed = total_rate("requests_total", "mode", FAILED)
    refused = total_rate("requests_rejected_total", "reason", HERE)
    return [
        graph("Rate", "reqps", {MODE: total_rate("requests_total")}),
        graph("Failed requests", "reqps", {MODE: failed}, scale=NONE_EXPECTED),
        graph("Refused", "reqps", {"{{reason}}": refused}, scale=NONE_EXPECTED),
    ]


def _latency() -> list[Panel]:
    took = "request_duration_seconds"
    return [
        graph(f"Latency p{round(q * 100)}", "s", {MODE: quantile(q, took)}, exemplars=q == 0.95)
        for q in (0.5, 0.95, 0.99)
    ]


def _tokens() -> list[Panel]:
    first = "time_to_first_token_seconds"
    medians = {"{{mode}} p50": quantile(0.5, first), "{{mode}} p95": quantile(0.95, first)}
    return [
        graph("Time to first token", "s", medians, dashed="p95"),
        graph("Time per output token", "s", {MODE: mean("time_per_output_token_seconds")}),
        graph("Tokens generated", "tokens/s", {MODE: total_rate("tokens_total", "mode", GENERATED)}),
    ]


def dispatch() -> Dashboard:
    parts = graph("Request time by part", "s", request_parts(), colours=PART_COLOURS, stacked=True, width=24)
    rows: Mapping[str, Sequence[Panel]] = {
        "Kernel share": _shares(),
        "One step, by batch, over the time shown": _steps(),
        "On a GPU": _device(),
        "What a step issues": _issued(),
        "Compiler": _compiler(),
        # Inside each `$mode` is that one.
        "One mode at a time": [parts.repeat("mode").repeat_direction("h").max_per_row(2)],
    }
    return board("dispatch", rows)


def _shares() -> list[Panel]:
    dispatched = total_rate("request_dispatch_seconds_sum")
    taken = total_rate("request_duration_seconds_sum")
    kernel_share = {MODE: f"avg by (mode, batch) ({series('device_bound_index')})"}
    sides = {"{{side}}": total_rate("samples_total", "side")}
    return [
        graph("Dispatch share", "percentunit", {MODE: f"{dispatched} / ({taken} > 0)"}),
        bars_by_batch("Kernel share", "percentunit", kernel_share),
        graph("Samples", "cps", sides, colours=SAMPLE_COLOURS, stacked=True, empty="no samples"),
    ]


def _steps() -> list[Panel]:
    shown = {
        "Decode step": ("period", DECODE),
        "Dispatch of a decode step": ("dispatch", DECODE),
        "Kernel of a decode step": ("kernel", DECODE),
        "Prefill step": ("wall", PREFILL),
    }
    queries = {
        title: mean(f"step_batch_{part}_seconds", "mode, batch", OF_MODE + phase, SHOWN)
        for title, (part, phase) in shown.items()
    }
    return [bars_by_batch(title, "s", {MODE: query}, width=12) for title, query in queries.items()]


def _device() -> list[Panel]:
    """The last three are found at warm-up: calls queued back to back, profiled steps, the profiler's cost."""
    decode = OF_MODE + DECODE
    dispatched = quantile(0.5, "step_dispatch_seconds", labels=decode, only=WHERE_STEPS_ARE_MEASURED)
    spanned = quantile(0.5, "step_device_span_seconds", labels=decode)
    queries = {"{{mode}} dispatch": dispatched, "{{mode}} span": spanned}
    lines = {
        "Device span p95": quantile(0.95, "step_device_span_seconds", labels=decode),
        "Sync wait": mean("request_sync_wait_seconds"),
        "Decode step p95": quantile(0.95, "step_period_seconds", labels=decode),
    }
    bars = {"Decode step on the device": "step_device_seconds", "Profiled kernels": "step_kernel_seconds"}
    cost = {"ratio": f"avg by (mode) ({series('profiler_dispatch_ratio')})"}
    return [
        graph("Dispatch against device span", "s", queries, dashed="span", empty=NO_GPU),
        *(graph(title, "s", {MODE: query}, empty=NO_GPU) for title, query in lines.items()),
        *(
            bars_by_batch(title, "s", {MODE: f"avg by (mode, batch) ({series(name, decode)})"}, empty=NO_GPU)
            for title, name in bars.items()
        ),
        bars_by_mode("Dispatch after the profiler", "suffix:×", cost, width=24, empty=NO_GPU),
    ]


def _issued() -> list[Panel]:
    counts = {
        what: f"max by (mode, phase) ({series(f'step_{what}')})"
        for what in ("operators", "kernels", "launches")
    }
    captured = {"graphs": f"sum by (mode) ({series('cudagraph_captures_total')}) > 0"}
    return [
        grid("Operators, kernels, launches", "none", counts, empty="no profiled request"),
        graph("Graph replays", "cps", {MODE: total_rate("cudagraph_replays_total")}, empty=NO_GPU),
        bars_by_mode("Graphs captured", "none", captured, empty="no graphs"),
    ]


def _compiler() -> list[Panel]:
    compiled = {"seconds": mean_since_start("compile_seconds")}
    warm_up = {"seconds": f"max by (mode, cache) ({series('warmup_seconds')})"}
    effective = {"": f"max by (mode, effective, reason) ({series('mode_effective_info')})"}
    parity = {"largest difference": f"max by (mode) ({series('mode_parity_max_abs_logit_difference')})"}
    counters = (
        ("Graph breaks", "cps", "graph_breaks_total"),
        ("Recompiles", "cps", "recompiles_total"),
        ("Fallbacks", "reqps", "fallbacks_total"),
    )
    return [
        *(
            graph(title, unit, {MODE: total_rate(name)}, scale=NONE_EXPECTED)
            for title, unit, name in counters
        ),
        bars_by_mode("Compilations", "s", compiled, empty="nothing compiled"),
        grid("Warm-up", "s", warm_up, empty="still warming"),
        grid("Parity", "sci", parity, scale=PARITY, empty="not measured yet"),
        grid("What each mode really runs", "none", effective, width=24, empty="still warming"),
    ]


CLIENT = 'mode=~"$mode"'
NO_CLIENT = "no load generator"


def load() -> Dashboard:
    rows = {
        "Load generator and service": _client_and_server(),
        "Queue": _queue(),
        "Outcomes": _outcomes(),
        "Processes": _processes(),
        "Device memory": _memory(),
    }
    return board("load", rows)


def _client_and_server() -> list[Panel]:
    users = {"users": f"sum({series('loadtest_users', '')})"}
    rates = {
        "client": total_rate("loadtest_requests_total", "", CLIENT),
        "server": total_rate("requests_total", ""),
    }
    means = {
        "client": mean("loadtest_latency_seconds", "", CLIENT),
        "server": mean("request_duration_seconds", ""),
    }
    p95 = {MODE: quantile(0.95, "loadtest_latency_seconds", labels=CLIENT)}
    return [
        graph("Users", "none", users, colours=SIDE_COLOURS, width=6, empty=NO_CLIENT),
        graph("Client and server rate", "reqps", rates, colours=SIDE_COLOURS, width=6),
        graph("Client latency over server latency", "s", means, colours=SIDE_COLOURS, width=6),
        graph("Client p95", "s", p95, width=6, empty=NO_CLIENT),
    ]


def _queue() -> list[Panel]:
    depth = {INSTANCE: f"sum by (instance) ({series('queue_depth', HERE)})"}
    progress = {MODE: f"sum by (mode) ({series('requests_in_progress')})"}
    refused = {"{{reason}}": total_rate("requests_rejected_total", "reason", HERE)}
    return [
        graph("Queue depth", "none", depth, width=6),
        graph("In progress", "none", progress, width=6),
        graph("Queue time", "s", {MODE: mean("request_queue_seconds")}, width=6),
        graph("Refused by reason", "reqps", refused, scale=NONE_EXPECTED, width=6),
    ]


def _outcomes() -> list[Panel]:
    outcomes = {"{{outcome}}": total_rate("requests_total", "outcome")}
    rows = {MODE: mean("step_batch_rows"), "{{mode}}, per request": mean("batch_size")}
    return [
        graph("Outcomes", "reqps", outcomes, colours=OUTCOME_COLOURS),
        graph("Sequences per decode step", "none", rows),
        graph("Profiled or sampled requests", "reqps", {MODE: total_rate("profiled_requests_total")}),
    ]


def _processes() -> list[Panel]:
    observing = total_rate("instrumentation_seconds_total", "", HERE)
    per_second = f"{observing} / ({total_rate('request_duration_seconds_sum', '', HERE)} > 0)"
    restarts = {"restarts": f"sum(increase({series('engine_restarts_total', HERE)}[{SHOWN}]))"}
    switches = total_rate("engine_involuntary_switches_total", "instance", HERE)
    lag = quantile(0.99, "event_loop_lag_seconds", "", HERE)
    up = {INSTANCE: f"min by (instance) ({series('engine_up', HERE)})"}
    connections = {
        INSTANCE: f"max by (instance) ({series('connections', HERE)})",
        "most, {{instance}}": f"max by (instance) ({series('connections_max', HERE)})",
    }
    return [
        graph("Engine up", "none", up, scale=AT_LEAST_ONE, width=4),
        number(
            "Engine restarts", "none", restarts, scale=NONE_EXPECTED, width=4, height=8, empty="no service"
        ),
        graph("Involuntary switches", "cps", {INSTANCE: switches}, width=5),
        graph("Instrumentation", "percentunit", {"of request time": per_second}, scale=SHARE_LOST, width=5),
        graph("Event loop lag", "s", {"p99": lag}, width=6),
        graph("Connections", "none", connections, width=6),
    ]


def _memory() -> list[Panel]:
    kinds = ("reserved", "allocated", "active", "inactive_split")

    def allocator(stat: str) -> dict[str, str]:
        labels = HERE + f', stat="{stat}"'
        return {
            f"{INSTANCE} {kind}": f"sum by (instance) ({series(f'memory_{kind}_bytes', labels)})"
            for kind in kinds
        }

    out_of_memory = total_rate("requests_total", "mode", OF_MODE + ', outcome="oom"', NOW)
    retries = total_rate("memory_alloc_retries_total", "instance", HERE)
    failures = total_rate("memory_ooms_total", "instance", HERE)
    utilisation = "max by (gpu) (DCGM_FI_DEV_GPU_UTIL{})"
    return [
        graph("Allocator", "bytes", allocator("current"), empty=NO_GPU),
        graph("Allocator peak", "bytes", allocator("peak"), empty=NO_GPU),
        graph("Allocator retries", "cps", {INSTANCE: retries}, scale=NONE_EXPECTED, empty=NO_GPU),
        graph("Failed allocations", "cps", {INSTANCE: failures}, scale=NONE_EXPECTED, empty=NO_GPU),
        graph("Out of memory", "reqps", {MODE: out_of_memory}, scale=NONE_EXPECTED),
        graph("GPU utilisation", "percent", {"GPU {{gpu}}": utilisation}, empty="no GPU exporter"),
    ]


FOLDER = Path(__file__).parent / "grafana"


def boards() -> dict[str, str]:
    """File name → JSON text of every board, the same on every run."""
    encoder = JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False)
    return {f"{made.__name__}.json": encoder.encode(made()) + "\n" for made in (overview, dispatch, load)}


def write() -> None:
    made = boards()
    for path in FOLDER.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
