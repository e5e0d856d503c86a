"""The report's plots of where time goes: the parts of a request, phase by phase, and dispatch floors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from plotly.subplots import make_subplots

from dashboards.theme import PART_COLOURS
from loadtests.report.formatting import significant
from loadtests.report.frame import PHASES
from loadtests.report.plotting import Plot, base, colour
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


def floors(findings: Findings) -> Plot | None:
    """Dispatch floor of one decode step by mode at the smallest batch."""
    run = findings.results.run
    known = {mode: floor for mode in run.plan.ladder_modes if (floor := smallest_floor(run.mode(mode)))}
    if not known:
        return None
    figure = base("dispatch floor of one decode step, µs", "", height=110 + 40 * len(known))
    modes = list(known)[::-1]
    values = [1e6 * float(known[mode]["seconds"]) for mode in modes]
    names = [
        f"{findings.label(mode)}  <b>{significant(value)} µs</b>"
        for mode, value in zip(modes, values, strict=True)
    ]
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


def smallest_floor(mode: dict[str, Any]) -> dict[str, float] | None:
    """Decode's dispatch floor of a mode's status at its smallest batch; None where it has none.

    Ends of an interval that too few samples leave open are 0 and infinite.
    """
    found = mode.get("dispatch_floors") or mode.get("floors") or []
    decode = [floor for floor in found if floor.get("phase", "decode") == "decode"]
    if not decode:
        return None
    floor = min(decode, key=lambda one: int(one["batch"]))
    high = math.inf if floor["high"] is None else floor["high"]
    return {"batch": floor["batch"], "seconds": floor["seconds"], "low": floor["low"] or 0.0, "high": high}
