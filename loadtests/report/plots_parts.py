"""The report's plots of where time goes: the parts of a request, phase by phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plotly.subplots import make_subplots

from dashboards.theme import PART_COLOURS
from loadtests.report.frame import PHASES
from loadtests.report.plotting import Plot, base
from loadtests.report.summaries import Summary, Verdict
from loadtests.report.verdict import Findings

Segment = tuple[str, str, str, Callable[[Summary], float | None]]
"""Name, colour, pattern, and its mean seconds per request."""

_HATCH = {"prefill": "/", "decode": ""}
"""Prefill is hatched, decode is plain: the same part has one colour in both."""


def _segments(device: str) -> list[Segment]:
    """The parts of a bar in the order in which they are stacked; they sum to the server's total."""
    beside = "sync_wait" if device == "cuda" else "kernel"
    found: list[Segment] = [("queue", PART_COLOURS["queue"], "", lambda s: s.parts["queue"])]
    for place, phase in enumerate(PHASES):
        for part in ("dispatch", beside):
            name = part.replace("_", " ")
            found.append((f"{phase} {name}", PART_COLOURS[name], _HATCH[phase], _of_phase(place, part)))
    return [*found, ("other", PART_COLOURS["other"], "", lambda s: s.parts["other"])]


def _of_phase(place: int, part: str) -> Callable[[Summary], float | None]:
    return lambda summary: getattr(summary.phases[place], f"{part}_seconds")


def parts(findings: Findings) -> Plot | None:
    """The parts of a request's time, prefill's and decode's apart, stacked, per mode and batch size."""
    if not findings.main:
        return None
    count = len(findings.main)
    titles = [f"batch {verdict.batch_size}" for verdict in findings.main]
    figure = make_subplots(
        rows=1, cols=count, shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03
    )
    figure.update_layout(base("", "", height=140 + 44 * len(findings.main[0].modes)).layout)
    for segment in _segments(findings.results.device):
        if any(segment[3](s) is not None for verdict in findings.main for s in verdict.modes):
            for column, verdict in enumerate(findings.main, start=1):
                _add_bars(findings, figure, column, verdict, segment)
    figure.update_xaxes(title={"text": "ms"}, nticks=5, rangemode="tozero")
    figure.update_yaxes(title=None, automargin=True, showgrid=False)
    figure.update_layout(
        barmode="stack", bargap=0.35, legend={"y": 1.14, "traceorder": "normal"}, margin={"t": 84}
    )
    return Plot("parts", figure, {"least_width": str(150 + 150 * count)})


def _add_bars(findings: Findings, figure: Any, column: int, verdict: Verdict, segment: Segment) -> None:  # noqa: ANN401 - plotly is untyped
    name, tone, pattern, value = segment
    modes = verdict.modes[::-1]
    seconds = [value(summary) for summary in modes]
    figure.add_bar(
        y=[findings.label(s.cell.mode) for s in modes],
        x=[None if part is None else 1e3 * part for part in seconds],
        name=name,
        orientation="h",
        row=1,
        col=column,
        marker={
            "color": tone,
            "line": {"width": 0},
            "pattern": {"shape": pattern, "size": 6, "solidity": 0.35, "fgcolor": "rgba(255,255,255,.75)"},
        },
        legendgroup=name,
        showlegend=column == 1,
        hovertemplate=f"%{{y}}, batch {verdict.batch_size}: {name} %{{x:.4g}} ms<extra></extra>",
    )
