"""Scrapes of the service's /metrics before and after a sweep, kept in its results folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

from loadtests.run.target import Target, TargetError, requests_by_mode

SCRAPES_FOLDER = "server_metrics"
COUNTED_WITHIN_SECONDS = 3.0
"""The server counts a request after sending the response, which may be after the client has received it."""


def scrape(target: Target, folder: Path, name: str, note: Callable[[str], None]) -> str | None:
    """The text of /metrics, saved as `server_metrics/<name>.prom`; None, and a note, where it is not read."""
    try:
        text = target.metrics()
    except TargetError as error:
        note(f"no scrape {name}: {error}")
        return None
    path = folder / SCRAPES_FOLDER / f"{name}.prom"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return text


def settled_scrape(
    target: Target, folder: Path, before: str | None, rows: int, note: Callable[[str], None]
) -> str | None:
    """The scrape `after`, once the server has counted as many requests as there are `rows`."""
    deadline = monotonic() + COUNTED_WITHIN_SECONDS
    while True:
        after = scrape(target, folder, "after", note)
        if before is None or after is None or monotonic() > deadline:
            return after
        if _total(after) - _total(before) >= rows:
            return after
        sleep(0.1)


def _total(metrics_text: str) -> float:
    return sum(sum(outcomes.values()) for outcomes in requests_by_mode(metrics_text).values())
