"""Scrapes of the service's /metrics before and after a sweep, kept in its results folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Literal, get_args

from loadtests.run.target import Target, TargetError, requests_by_mode

SCRAPES_FOLDER = "server_metrics"
COUNTED_WITHIN_SECONDS = 3.0
"""The server counts a request after sending the response, which may be after the client has received it."""


Moment = Literal["before", "after"]


def _path(folder: Path, moment: Moment, part: int) -> Path:
    """`server_metrics/before.prom`, and `before-2.prom` of a second part."""
    return folder / SCRAPES_FOLDER / (f"{moment}.prom" if part == 1 else f"{moment}-{part}.prom")


def scrape(
    target: Target, folder: Path, moment: Moment, part: int, note: Callable[[str], None]
) -> str | None:
    """The text of /metrics, saved for `part` of the sweep; None, and a note, where it is not read."""
    try:
        text = target.metrics()
    except TargetError as error:
        note(f"no scrape {moment}: {error}")
        return None
    path = _path(folder, moment, part)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return text


def settled_scrape(
    target: Target, folder: Path, before: str | None, rows: int, part: int, note: Callable[[str], None]
) -> str | None:
    """The scrape `after` of `part`, once the server has counted as many requests as it has `rows`."""
    deadline = monotonic() + COUNTED_WITHIN_SECONDS
    while True:
        after = scrape(target, folder, "after", part, note)
        if before is None or after is None or monotonic() > deadline:
            return after
        if _total(after) - _total(before) >= rows:
            return after
        sleep(0.1)


def read_scrapes(folder: Path, part: int) -> tuple[str | None, str | None]:
    """The scrapes before and after `part`; None for one that was not taken."""
    before, after = (_path(folder, moment, part) for moment in get_args(Moment))
    return _text(before), _text(after)


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _total(metrics_text: str) -> float:
    return sum(sum(outcomes.values()) for outcomes in requests_by_mode(metrics_text).values())
