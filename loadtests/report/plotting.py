"""What all plots of the report share: the base figure, one colour per mode, and the main cells by mode.

Backgrounds, text and grid are set by the page for its light or dark colour scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from dashboards.theme import mode_colour
from loadtests.plan.cells import mode_names
from loadtests.report.formatting import significant
from loadtests.report.summaries import Summary
from loadtests.report.verdict import Findings

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure; its title and caption are in captions.html under `id` and may use `facts`."""

    id: str
    figure: go.Figure
    facts: dict[str, str] = field(default_factory=dict)


def colour(mode: str) -> str:
    """A mode's colour, everywhere the same."""
    return mode_colour(mode, mode_names())


def translucent(hexadecimal: str, alpha: float) -> str:
    """A colour like #3D85C6 with transparency."""
    red, green, blue = (int(hexadecimal[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def base(x: str, y: str, height: int = 380) -> go.Figure:
    """An empty figure with axis titles."""
    figure = go.Figure()
    figure.update_layout(
        template=None,
        height=height,
        margin={"l": 64, "r": 16, "t": 16, "b": 56},
        hovermode="closest",
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        xaxis={"title": {"text": x}, "automargin": True, "zeroline": False},
        yaxis={"title": {"text": y}, "automargin": True, "zeroline": False},
    )
    return figure


def by_mode(findings: Findings) -> dict[str, list[Summary]]:
    """The main conditions' cells by mode, in the ladder's order, by batch size."""
    modes: dict[str, list[Summary]] = {}
    for verdict in findings.main:
        for summary in verdict.modes:
            modes.setdefault(summary.cell.mode, []).append(summary)
    return modes


def log_axis(values: Iterable[float | None]) -> dict[str, Any]:
    """A logarithmic axis around `values` with ticks at 1, 2 and 5 times the powers of ten."""
    known = [value for value in values if value is not None and value > 0 and math.isfinite(value)]
    if not known:
        return {"type": "log"}
    low = min(known) / 1.25
    high = max(known) * 1.25
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [
        step * 10.0**power for power in powers for step in (1, 2, 5) if low <= step * 10.0**power <= high
    ]
    labels = [significant(tick, 1) for tick in ticks]
    return {
        "type": "log",
        "tickvals": ticks,
        "ticktext": labels,
        "range": [math.log10(low), math.log10(high)],
    }


def batch_axis(findings: Findings) -> dict[str, Any]:
    """A logarithmic axis with a tick per measured batch size."""
    sizes = [verdict.batch_size for verdict in findings.main]
    return {"type": "log", "tickvals": sizes, "ticktext": [str(size) for size in sizes], "tickangle": 0}
