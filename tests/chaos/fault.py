"""What a fault is, what came of it, and the seconds within which things must happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.chaos.victim import PATIENCE_SECONDS
from tests.support.serving import until

REPLACED_SECONDS, NOTICED_SECONDS, ENDED_SECONDS, ANSWERED_SECONDS = 30.0, 15.0, 10.0, 2.0
"""Ready again after an engine's death; a hang noticed; a service ended; its running requests ended."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What a fault led to: in words, with its seconds, and whether it is what must happen."""

    words: str
    seconds: float
    as_must: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """`must` is what has to happen; `run` gets an empty folder."""

    name: str
    must: str
    run: Callable[[Path], Happened]


def seconds_until(condition: Callable[[], object], what: str) -> float:
    """The seconds until `condition` holds."""
    began = monotonic()
    until(condition, what, PATIENCE_SECONDS)
    return monotonic() - began
