"""One panel of a board, drawn by plotly from its JSON and the results of its queries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import plotly.graph_objects as go

from dashboards.local import TimeSeries
from dashboards.theme import MODE_COLOURS, PALETTE, mode_colour

Results = Sequence[Sequence[TimeSeries]]
"""The series of each query of a panel."""

STEP_SECONDS = 1.0
"""Between two points of a line; the pictures are drawn from scrapes each second."""
SI = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def draw(panel: dict[str, Any], results: Results, height_pixels: int) -> str:
    """The panel's contents as HTML; its no-data text where no query has data."""
    if not any(results):
        return f'<div class="empty">{escape(panel["fieldConfig"]["defaults"]["noValue"])}</div>'
    if panel["type"] == "stat":
        return _number(panel, results)
    if panel["type"] == "table":
        return _table(panel, results)
    figure = _lines(panel, results) if panel["type"] == "timeseries" else _bars(panel, results)
    figure.update_layout(
        template="plotly_white",
        height=height_pixels,
        margin={"l": 62, "r": 12, "t": 8, "b": 28},
        legend={"orientation": "h", "y": -0.14},
        font={"size": 11},
        showlegend=True,
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config={"staticPlot": True}))


def shown(value: float, unit: str) -> str:
    """A value with its unit for display: '1.3 ms', '4.2 %', '12 reqps', '1.8 ×', '2 GiB'."""
    if unit == "s":
        scale, prefix = next((pair for pair in SI if abs(value) >= pair[0]), SI[-1])
        return "0 s" if value == 0 else f"{value / scale:.3g} {prefix}s"
    if unit == "percentunit":
        return f"{value:.1%}"
    if unit == "bytes":
        return f"{value / 2**30:.3g} GiB"
    suffix = unit.removeprefix("suffix:")
    return f"{value:.3g}" if unit in ("none", "short", "sci") else f"{value:.3g} {suffix}"


def ladder_index(mode: str) -> int:
    """The place of a mode in the ladder; modes that are not in it come last."""
    ladder = list(MODE_COLOURS)
    return ladder.index(mode) if mode in ladder else len(ladder)


def colour_of(panel: dict[str, Any], name: str) -> str:
    """The fixed colour that the panel's overrides give a series, else one of a palette by name."""
    for override in panel["fieldConfig"]["overrides"]:
        matcher = override["matcher"]
        (first, *_) = override["properties"]
        if first["id"] == "color" and re.search(matcher["options"].strip("/"), name):
            return str(first["value"]["fixedColor"])
    return PALETTE[sum(map(ord, name)) % len(PALETTE)]


def dash_of(panel: dict[str, Any], name: str) -> str:
    """'dash' where the panel's overrides set it, else 'solid'."""
    for override in panel["fieldConfig"]["overrides"]:
        if override["properties"][0]["id"] == "custom.lineStyle":
            return "dash" if re.search(override["matcher"]["options"].strip("/"), name) else "solid"
    return "solid"


def named(legend: str, labels: Mapping[str, str]) -> str:
    """A legend template with its labels filled in."""
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), legend)


def _lines(panel: dict[str, Any], results: Results) -> go.Figure:
    figure = go.Figure()
    stacked = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode") == "normal"
    for target, all_series in zip(panel["targets"], results, strict=True):
        for series in all_series:
            name = named(target["legendFormat"], series.labels)
            points = series.points if stacked else _with_gaps(series.points)
            when = [datetime.fromtimestamp(at, UTC) for at, _ in points]
            values = [value for _, value in points]
            figure.add_scatter(
                x=when,
                y=values,
                name=name,
                mode="lines",
                stackgroup="parts" if stacked else None,
                line={"color": colour_of(panel, name), "width": 2, "dash": dash_of(panel, name)},
            )
    return _with_unit(figure, panel, "y")


def _with_gaps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float | None]]:
    """The points with a None where the series was absent, so that no line is drawn across the gap."""
    kept: list[tuple[float, float | None]] = []
    for at, value in points:
        if kept and at - kept[-1][0] > 1.5 * STEP_SECONDS:
            kept.append((at - STEP_SECONDS, None))
        kept.append((at, value))
    return kept


def _bars(panel: dict[str, Any], results: Results) -> go.Figure:
    by_batch = panel["options"]["xField"] != "mode"
    figure = go.Figure(layout={"barmode": "group" if by_batch else "stack"})
    if by_batch:
        batches = sorted({series.labels["batch"] for series in results[0]}, key=float)
        for mode in sorted({series.labels["mode"] for series in results[0]}, key=ladder_index):
            own = {one.labels["batch"]: one.points[0][1] for one in results[0] if one.labels["mode"] == mode}
            values = [own.get(batch) for batch in batches]
            figure.add_bar(
                x=[f"batch {batch}" for batch in batches],
                y=values,
                name=mode,
                marker_color=colour_of(panel, mode),
            )
        return _with_unit(figure, panel, "y")
    for target, all_series in zip(panel["targets"], results, strict=True):
        downwards = sorted(all_series, key=lambda one: ladder_index(one.labels["mode"]), reverse=True)
        modes = [one.labels["mode"] for one in downwards]
        values = [one.points[0][1] for one in downwards]
        name = target["legendFormat"]
        by_mode = [mode_colour(mode, sorted(modes)) for mode in modes]
        colour = by_mode if panel["options"].get("colorByField") else colour_of(panel, name)
        figure.add_bar(y=modes, x=values, name=name, orientation="h", marker_color=colour)
    return _with_unit(figure, panel, "x")


def _with_unit(figure: go.Figure, panel: dict[str, Any], axis: str) -> go.Figure:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    formats = {"s": {"tickformat": "~s", "ticksuffix": "s"}, "percentunit": {"tickformat": "~%"}}
    suffix = "" if unit in ("none", "short", "sci") else f" {unit.removeprefix('suffix:')}"
    figure.update_layout(
        {f"{axis}axis": {"rangemode": "tozero", **formats.get(unit, {"ticksuffix": suffix})}}
    )
    return figure


def _number(panel: dict[str, Any], results: Results) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    value = results[0][0].points[-1][1]
    steps = defaults["thresholds"]["steps"]
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    text = escape(shown(value, defaults["unit"]))
    return f'<div class="number" style="color: {reached[-1]}">{text}</div>'


def _table(panel: dict[str, Any], results: Results) -> str:
    columns = [target["legendFormat"] for target in panel["targets"]]
    overrides = {one["matcher"]["options"]: one["properties"] for one in panel["fieldConfig"]["overrides"]}
    units = {column: overrides[column][0]["value"] for column in columns if column in overrides}
    default = panel["fieldConfig"]["defaults"]["unit"]
    rows: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for column, all_series in zip(columns, results, strict=True):
        for one in all_series:
            cells = rows.setdefault(tuple(sorted(one.labels.items())), {})
            cells[column] = shown(one.points[0][1], units.get(column, default))
    keys = list(dict.fromkeys(key for labels in rows for key, _ in labels))
    keys.sort(key=lambda key: key != "mode")
    shown_columns = [column for column in columns if column]
    head = "".join(f"<th>{escape(title)}</th>" for title in [*keys, *shown_columns])
    body = ""
    for labels, cells in sorted(rows.items(), key=lambda row: ladder_index(dict(row[0]).get("mode", ""))):
        texts = [dict(labels).get(key, "") for key in keys] + [
            cells.get(column, "") for column in shown_columns
        ]
        body += "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in texts) + "</tr>"
    return f"<div><table><tr>{head}</tr>{body}</table></div>"
