"""Warnings of the engine's side, on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress


def warn(text: str) -> None:
    """Write a line. A full disk takes the log as well, often the same one: then what was warned of stands."""
    with suppress(OSError):
        print(f"launchbound: {text}", file=sys.stderr, flush=True)
