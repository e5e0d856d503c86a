"""The report's plot of latency over time, which shows what the machine did while it was measured."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from loadtests.report.plotting import SYMBOLS, Plot, base, colour, log_axis, translucent
from loadtests.report.verdict import Findings
from loadtests.run.machine import marked_rounds

MOST_POINTS = 20_000
"""Of more requests only one in several is drawn: neither browser nor reader takes in a million points."""


def timeline(findings: Findings) -> Plot | None:
    """Latencies of requests in the order of measuring, at most MOST_POINTS of them, warm-up shaded.

    Gaps between the parts of a resumed sweep are left out.
    """
    shown = ("start", "stage", "round", "part", "batch_size", "mode", "cell", "latency_seconds")
    opened = pl.col("cell").cast(pl.String).is_in(findings.results.open_loop_names)
    closed = findings.results.rows.lazy().filter(
        pl.col("ok") & ~opened & pl.col("stage").is_in(["warmup", "measure"])
    )
    rows = closed.select(shown).sort("start").collect()
    if rows.is_empty():
        return None
    # The gap before a part lies between its first request and the one before that.
    gap = pl.when(pl.col("part") != pl.col("part").shift(1)).then(pl.col("start").diff()).otherwise(0.0)
    gaps = gap.fill_null(0.0).cum_sum()
    rows = rows.with_columns((pl.col("start") - pl.col("start").first() - gaps).alias("at"))
    figure = base("seconds since the first request", "latency, ms")
    warm = rows.filter(pl.col("stage") == "warmup")
    for (_,), of_part in warm.group_by("part", maintain_order=True):
        figure.add_vrect(
            x0=of_part["at"].min(),
            x1=of_part["at"].max(),
            line={"width": 0},
            layer="below",
            fillcolor=translucent("#8A94A6", 0.2),
            annotation={"text": "warm-up", "font": {"size": 11}},
            annotation_position="top left",
        )
    _shade_marked(figure, rows, findings)
    sizes = sorted(rows["batch_size"].unique().to_list())
    every = -(-rows.height // MOST_POINTS)
    requests = rows.height
    rows = rows.gather_every(every)
    for mode in findings.results.run.plan.modes:
        mine = rows.filter(pl.col("mode") == mode)
        figure.add_scatter(
            x=mine["at"].to_list(),
            y=(1e3 * mine["latency_seconds"]).to_list(),
            mode="markers",
            name=findings.label(mode),
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
    which = (
        "Every closed-loop request" if every == 1 else f"One in {every} of {requests:,} closed-loop requests"
    )
    return Plot("timeline", figure, {"shapes": shapes, "which": which})


def _shade_marked(figure: go.Figure, rows: pl.DataFrame, findings: Findings) -> None:
    """Rounds in which the machine was not itself."""
    for marked in marked_rounds(findings.results.run.machine_by_round):
        mine = rows.filter((pl.col("stage") == "measure") & (pl.col("round") == marked.round))
        if not mine.is_empty():
            figure.add_vrect(
                x0=mine["at"].min(),
                x1=(mine["at"] + mine["latency_seconds"]).max(),
                line={"width": 0},
                layer="below",
                fillcolor=translucent("#E9A23B", 0.18),
                annotation={"text": f"round {marked.round} marked", "font": {"size": 10}},
                annotation_position="bottom left",
            )
