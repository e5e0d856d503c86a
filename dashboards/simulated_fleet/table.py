"""The fleets that were simulated, and the one that they stand for, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dashboards.simulated_fleet.measurement import Reading
from dashboards.simulated_fleet.projection import OnPaper, fitted

COLUMNS: dict[str, tuple[Callable[[Reading], float], str]] = {
    "series in the head": (lambda one: one.head_series, ",.0f"),
    "samples per second": (lambda one: one.samples_per_second, ",.0f"),
    "resident memory, MB": (lambda one: one.resident_bytes / 1e6, ",.0f"),
    "CPU, cores": (lambda one: one.cpu_cores, ".2f"),
    "longest scrape, ms": (lambda one: one.scrape_seconds * 1e3, ",.0f"),
}
"""Head → what it shows of a reading, and in which form."""

ALONG_A_LINE = tuple(COLUMNS)[:4]
"""What grows with the fleet; a scrape is of one replica, however many there are."""


def table(readings: Sequence[Reading], target: int, paper: OnPaper) -> Iterator[str]:
    """A row per fleet, then `target` replicas by the lines through them, and by the rules of thumb."""
    yield f"| replicas | {' | '.join(COLUMNS)} |"
    yield "|---:|" + "---:|" * len(COLUMNS)
    for one in readings:
        cells = [format(read(one), form) for read, form in COLUMNS.values()]
        yield f"| {one.replicas:,} | {' | '.join(cells)} |"
    fleets = [float(one.replicas) for one in readings]
    cells = []
    for name in ALONG_A_LINE:
        read, form = COLUMNS[name]
        predicted = fitted(fleets, [read(one) for one in readings]).at(target)
        value, low, high = (format(part, form) for part in predicted)
        cells.append(f"{value} ({low} to {high})")
    yield f"| **{target:,}** by the line, 95 % | {' | '.join(cells)} | – |"
    thumb = [f"{paper.series:,}", f"{paper.samples_per_second:,.0f}", f"{paper.head_bytes / 1e6:,.0f}"]
    yield f"| {target:,} by rules of thumb | {' | '.join(thumb)} | – | – |"
