"""The Overview board: availability, traffic, latency, and each mode's gain over eager."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.frame import board
from dashboards.panels import Panel, PanelStyle, Query, bars_by_batch, bars_by_mode, graph, grid, number
from dashboards.promql import (
    DECODE,
    HERE,
    OF_MODE,
    SHOWN,
    mean,
    quantile,
    request_parts,
    series,
    speedup_over_eager,
    total_rate,
)
from dashboards.theme import AT_LEAST_ONE, NONE_EXPECTED, PART_COLOURS, SHARE_KEPT, SHARE_LOST

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
