"""How a study reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Protocol


class Report(Protocol):
    """Takes what the study does now, as one short line; shown or sent to the client as it comes.

    `done` of `total` alike parts are finished, where there are such.
    """

    def __call__(self, text: str, done: int | None = None, total: int | None = None, /) -> None:
        """Report."""


def named(what: str, report: Report) -> Report:
    """`report`, with `what` before every line."""
    return lambda text, done=None, total=None, /: report(f"{what}: {text}", done, total)


def counted(report: Report, total: int) -> Callable[[str], None]:
    """A log for what writes one line at the begin of each of `total` parts; reports them, counted."""
    finished = count()
    return lambda text: report(text, next(finished), total)
