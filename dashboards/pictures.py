"""Draw the boards without Grafana: every panel's queries, sent to a real Prometheus, drawn with plotly.

`python -m dashboards.pictures --prometheus URL --seconds 300 --out FOLDER` draws the last minutes: a page
per board and, where a Chromium is on the machine, its picture. Layout, colours, units and texts come from the
boards' JSON; Grafana's own rendering differs in looks, not in numbers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from time import time
from typing import Any

from plotly import offline

from dashboards import drawing
from dashboards.build import boards
from dashboards.local import Prometheus, TimeSeries
from dashboards.panel_queries import filled

CELL_PIXELS = 34
WIDTH_PIXELS = 1600
STYLE = """
body { margin: 0; background: #f4f5f7; font: 13px sans-serif; color: #24292e; width: %dpx; }
h1 { font-size: 20px; margin: 14px 16px 2px; } p.note { margin: 0 16px 8px; color: #666; }
main { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: %dpx; gap: 6px;
  padding: 0 12px 12px; }
section { background: #fff; border: 1px solid #dfe2e6; border-radius: 3px; overflow: hidden; display: flex;
  flex-direction: column; }
section.row { background: none; border: none; font-weight: bold; justify-content: end; }
section > b { padding: 5px 9px 0; font-weight: 600; } section > div { flex: 1; min-height: 0; }
.number { font-size: 30px; padding: 8px 10px; } .empty { color: #999; padding: 12px; }
table { border-collapse: collapse; margin: 6px 9px; } td, th { padding: 4px 14px 4px 0; text-align: left;
  border-bottom: 1px solid #eee; font-variant-numeric: tabular-nums; }
"""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time range to draw, in seconds since the epoch."""

    start: float
    end: float

    @property
    def window(self) -> str:
        """Its length as a PromQL duration."""
        return f"{max(1, round(self.end - self.start))}s"


def page(name: str, board: dict[str, Any], prometheus: Prometheus, shown: TimeRange) -> str:
    """One board as a self-contained page."""
    panels = "\n".join(
        _section(panel, mode, prometheus, shown)
        for whole in board["panels"]
        for panel, mode in _copies(whole, prometheus, shown)
    )
    note = f"{board['description']} Drawn from the boards' own queries, without a Grafana server."
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(name)}</title>'
        f"<style>{STYLE % (WIDTH_PIXELS, CELL_PIXELS)}</style><script>{offline.get_plotlyjs()}</script>"
        f'<h1>{escape(board["title"])}</h1><p class="note">{escape(note)}</p><main>{panels}</main></html>'
    )


def _copies(
    panel: dict[str, Any], prometheus: Prometheus, shown: TimeRange
) -> list[tuple[dict[str, Any], str]]:
    """(panel, mode) pairs: the panel once for all modes, or once per mode where it repeats."""
    if "repeat" not in panel:
        return [(panel, ".*")]
    served = f"sum by (mode) (increase(launchbound_requests_total[{shown.window}])) > 0"
    modes = sorted(
        (one.labels["mode"] for one in prometheus.query(served, at=shown.end)), key=drawing.ladder_index
    )
    copies = []
    for index, mode in enumerate(modes):
        place = panel["gridPos"]
        width = 24 // panel["maxPerRow"]
        corner = {"x": index * width % 24, "y": place["y"] + index * width // 24 * place["h"]}
        title = f"{panel['title']}: {mode}"
        copies.append((panel | {"title": title, "gridPos": place | corner | {"w": width}}, mode))
    return copies


def _section(panel: dict[str, Any], mode: str, prometheus: Prometheus, shown: TimeRange) -> str:
    place = panel["gridPos"]
    style = (
        f"grid-column: {place['x'] + 1} / span {place['w']}; grid-row: {place['y'] + 1} / span {place['h']};"
    )
    title = escape(panel["title"])
    if panel["type"] == "row":
        return f'<section class="row" style="{style}">{title}</section>'
    results = [_run_query(target, mode, prometheus, shown) for target in panel["targets"]]
    inside = drawing.draw(panel, results, place["h"] * (CELL_PIXELS + 6) - 34)
    return f'<section style="{style}"><b>{title}</b>{inside}</section>'


def _run_query(
    target: dict[str, Any], mode: str, prometheus: Prometheus, shown: TimeRange
) -> list[TimeSeries]:
    """Graphs over the range, with rates over 5 s; tables and bars at its end, with rates over all of it."""
    if target["format"] == "table":
        return prometheus.query(filled(target["expr"], window=shown.window, mode=mode), at=shown.end)
    expr = filled(target["expr"], window="5s", mode=mode)
    return prometheus.query_range(expr, shown.start, shown.end, drawing.STEP_SECONDS)


def photograph(paths: Sequence[Path], chromium: str) -> None:
    """A PNG beside each page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for path in paths:
            sheet = browser.new_page(viewport={"width": WIDTH_PIXELS, "height": 900})
            sheet.goto(path.absolute().as_uri())
            sheet.screenshot(path=path.with_suffix(".png"), full_page=True)
        browser.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.pictures", description=__doc__)
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--seconds", default=300.0, type=float, help="how much of the past to draw")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    chosen = parser.parse_args(arguments)
    shown = TimeRange(time() - chosen.seconds, time())
    chosen.out.mkdir(parents=True, exist_ok=True)
    written = []
    for file, text in boards().items():
        path = (chosen.out / file).with_suffix(".html")
        board = json.loads(text)
        path.write_text(page(path.stem, board, Prometheus(chosen.prometheus), shown))
        written.append(path)
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium on this machine: pages only, no pictures", file=sys.stderr)
    else:
        photograph(written, chromium)
    print(*written, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
