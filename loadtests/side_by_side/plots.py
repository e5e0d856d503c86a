"""The picture's plots: each run's best latency and throughput against batch, and its speed-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from loadtests.plan.cells import BASELINE, Group
from loadtests.report.plotting import Plot, base, log_axis, translucent
from loadtests.report.summaries import Summary
from loadtests.side_by_side.entry import Entry, best
from service.statistics.intervals import Interval


def plots(entries: Sequence[Entry], groups: Sequence[Group]) -> Iterator[Plot]:
    """All plots that have data, of the first conditions that the runs share."""
    main = [group for group in groups if group[1:] == groups[0][1:]]
    if len(main) > 1:
        yield _lines(entries, main, "latency", "latency, ms", 1e3)
        yield _lines(entries, main, "throughput", "tokens per second", 1.0)
    if main:
        yield _speedups(entries, main)


VALUES: dict[str, Callable[[Summary], Interval]] = {
    "latency": lambda summary: summary.latency,
    "throughput": lambda summary: summary.tokens_per_second,
}


def _lines(entries: Sequence[Entry], groups: Sequence[Group], name: str, title: str, scale: float) -> Plot:
    figure = base("batch size (prompts per request)", title, height=340)
    sizes = [group[0] for group in groups]
    ends: list[float | None] = []
    for entry in entries:
        found = [(group[0], best(verdict)) for group in groups if (verdict := entry.verdict(group))]
        values = [VALUES[name](summary) for _, summary in found]
        ends += [scale * value.value for value in values]
        figure.add_scatter(
            x=[batch for batch, _ in found],
            y=[scale * value.value for value in values],
            name=entry.name,
            mode="lines+markers",
            line={"color": entry.colour, "width": 2.5},
            marker={"size": 8},
            error_y=_whiskers(values, scale),
            text=[summary.effective or summary.cell.mode for _, summary in found],
            hovertemplate=f"{entry.letter}, batch %{{x}}: %{{y:.4g}} (%{{text}})<extra></extra>",
        )
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=[str(size) for size in sizes], tickangle=0)
    figure.update_yaxes(**log_axis(ends))
    return Plot(name, figure)


def _speedups(entries: Sequence[Entry], groups: Sequence[Group]) -> Plot:
    """One place per batch size and run; a marker per mode would be crowded, so: the mode to ship."""
    figure = base("batch size", f"speed-up over {BASELINE}, ×", height=340)
    for number, entry in enumerate(entries):
        offset = (number - (len(entries) - 1) / 2) * 0.7 / max(1, len(entries))
        shown = [
            (place, summary, summary.comparison.speedup)
            for place, group in enumerate(groups)
            if (verdict := entry.verdict(group)) and (summary := best(verdict)).comparison
        ]
        figure.add_scatter(
            x=[place + offset for place, _, _ in shown],
            y=[speedup.value for _, _, speedup in shown],
            name=entry.name,
            mode="markers",
            marker={"size": 11, "color": entry.colour},
            error_y=_whiskers([speedup for _, _, speedup in shown], 1.0),
            text=[summary.effective or summary.cell.mode for _, summary, _ in shown],
            hovertemplate=f"{entry.letter}: %{{y:.3g}}× (%{{text}})<extra></extra>",
        )
    figure.add_hline(y=1, line={"width": 1.5, "color": translucent("#8A94A6", 0.9), "dash": "dot"})
    places = list(range(len(groups)))
    figure.update_xaxes(
        tickvals=places,
        ticktext=[f"batch {group[0]}" for group in groups],
        showgrid=False,
        range=[-0.5, len(places) - 0.5],
        title=None,
    )
    figure.update_yaxes(rangemode="tozero")
    return Plot("speedup", figure)


def _whiskers(values: Sequence[Interval], scale: float) -> dict[str, object]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [scale * (value.high - value.value) for value in values],
        "arrayminus": [scale * (value.value - value.low) for value in values],
        "thickness": 1.5,
        "width": 4,
    }
