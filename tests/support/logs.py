"""The lines that the log of this process has while a block runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from service.front.logs import FORMATTERS


class Lines(logging.Handler):
    """Keeps what would be written, line by line."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.setFormatter(FORMATTERS[form]())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self.lines += self.format(record).split("\n")

    def objects(self, component: str) -> list[dict[str, Any]]:
        """Lines of JSON, of one component."""
        found = map(json.loads, list(self.lines))
        return [line for line in found if line["component"] == component]


@contextmanager
def logged(form: str = "json") -> Iterator[Lines]:
    """What our loggers write within the block; nothing of it reaches standard error."""
    ours = logging.getLogger("launchbound")
    kept = Lines(form)
    before = ours.level, ours.propagate
    ours.addHandler(kept)
    ours.setLevel(logging.INFO)
    ours.propagate = False
    try:
        yield kept
    finally:
        ours.removeHandler(kept)
        ours.setLevel(before[0])
        ours.propagate = before[1]
