"""The report's plots of where time goes: parts, dispatch floors, latency over time."""

from __future__ import annotations

import polars as pl
from plotly.subplots import make_subplots

from dashboards.theme import PART_COLOURS
from loadtests.report.formatting import significant
from loadtests.report.plotting import SYMBOLS, Plot, base, colour, log_axis, translucent
from loadtests.report.results import PARTS
from loadtests.report.verdict import Findings


def parts(findings: Findings) -> Plot | None:
    """The parts of a request's time, stacked, per mode and batch size."""
    if not findings.main:
        return None
    count = len(findings.main)
    titles = [f"batch {verdict.batch_size}" for verdict in findings.main]
    figure = make_subplots(
        rows=1, cols=count, shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03
    )
    figure.update_layout(base("", "", height=120 + 44 * len(findings.main[0].modes)).layout)
    shown = [p for p in PARTS if any(s.parts[p] is not None for v in findings.main for s in v.modes)]
    for column, verdict in enumerate(findings.main, start=1):
        modes = verdict.modes[::-1]
        for part in shown:
            name = part.replace("_", " ")
            values = [None if s.parts[part] is None else 1e3 * (s.parts[part] or 0.0) for s in modes]
            figure.add_bar(
                y=[s.cell.mode for s in modes],
                x=values,
                name=name,
                orientation="h",
                row=1,
                col=column,
                marker={"color": PART_COLOURS[name], "line": {"width": 0}},
                legendgroup=name,
                showlegend=column == 1,
                hovertemplate=f"%{{y}}, batch {verdict.batch_size}: {name} %{{x:.4g}} ms<extra></extra>",
            )
        figure.update_xaxes(title={"text": "ms"}, row=1, col=column, nticks=5, rangemode="tozero")
    figure.update_yaxes(title=None, automargin=True, showgrid=False)
    figure.update_layout(
        barmode="stack", bargap=0.35, legend={"y": 1.12, "traceorder": "normal"}, margin={"t": 70}
    )
    return Plot("parts", figure, {"least_width": str(150 + 150 * count)})


def floors(findings: Findings) -> Plot | None:
    """Dispatch floor of one decode step by mode at the smallest batch."""
    run = findings.results.run
    known = {mode: floor for mode in run.plan.modes if (floor := smallest_floor(run.mode(mode)))}
    if not known:
        return None
    figure = base("dispatch floor of one decode step, µs", "", height=110 + 40 * len(known))
    modes = list(known)[::-1]
    values = [1e6 * float(known[mode]["seconds"]) for mode in modes]
    names = [f"{mode}  <b>{significant(value)} µs</b>" for mode, value in zip(modes, values, strict=True)]
    figure.add_bar(
        y=names,
        x=values,
        orientation="h",
        marker={"color": [colour(mode) for mode in modes]},
        showlegend=False,
        error_x={
            "type": "data",
            "symmetric": False,
            "thickness": 1.5,
            "width": 5,
            "array": [1e6 * (float(known[m]["high"]) - float(known[m]["seconds"])) for m in modes],
            "arrayminus": [1e6 * (float(known[m]["seconds"]) - float(known[m]["low"])) for m in modes],
        },
        hovertemplate="%{y}: %{x:.4g} µs<extra></extra>",
    )
    figure.update_yaxes(title=None, showgrid=False)
    figure.update_layout(bargap=0.35)
    batch = next(iter(known.values()))["batch"]
    return Plot("floors", figure, {"batch": str(batch)})


def smallest_floor(mode: dict[str, object]) -> dict[str, float] | None:
    """The dispatch floor of a mode's status at its smallest batch; None where it has none."""
    found = mode.get("dispatch_floors") or mode.get("floors") or []
    return min(found, key=lambda floor: floor["batch"], default=None) if isinstance(found, list) else None


def timeline(findings: Findings) -> Plot | None:
    """Every request's latency in the order of measuring, warm-up shaded."""
    rows = findings.results.rows.filter(pl.col("ok") & pl.col("load").is_null()).sort("start")
    if rows.is_empty():
        return None
    began = rows["start"].min()
    rows = rows.with_columns((pl.col("start") - pl.lit(began)).alias("at"))
    figure = base("seconds since the first request", "latency, ms")
    warm = rows.filter(pl.col("stage") == "warmup")
    if not warm.is_empty():
        figure.add_vrect(
            x0=0,
            x1=warm["at"].max(),
            line={"width": 0},
            layer="below",
            fillcolor=translucent("#8A94A6", 0.2),
            annotation={"text": "warm-up", "font": {"size": 11}},
            annotation_position="top left",
        )
    sizes = sorted(rows["batch_size"].unique().to_list())
    for mode in findings.results.run.plan.modes:
        mine = rows.filter(pl.col("mode") == mode)
        figure.add_scatter(
            x=mine["at"].to_list(),
            y=(1e3 * mine["latency_seconds"]).to_list(),
            mode="markers",
            name=mode,
            marker={
                "color": colour(mode),
                "size": 5,
                "opacity": 0.75,
                "symbol": [SYMBOLS[sizes.index(size) % len(SYMBOLS)] for size in mine["batch_size"]],
            },
            text=mine["cell"].to_list(),
            hovertemplate="%{text}<br>%{y:.4g} ms at %{x:.1f} s<extra></extra>",
        )
    figure.update_yaxes(**log_axis((1e3 * rows["latency_seconds"]).to_list()))
    shapes = ", ".join(f"{SYMBOLS[n % len(SYMBOLS)]} = batch {size}" for n, size in enumerate(sizes))
    return Plot("timeline", figure, {"shapes": shapes})
