"""The Dispatch and kernels board: host against device time of a step, and the cost of compiling."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.frame import board
from dashboards.panels import Panel, PanelStyle, Query, bars_by_batch, bars_by_mode, graph, grid, repeated
from dashboards.promql import (
    DECODE,
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
    total_rate,
)
from dashboards.theme import NONE_EXPECTED, PARITY, PART_COLOURS, SAMPLE_COLOURS


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
        PanelStyle("Dispatch per request second", "percentunit"),
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
