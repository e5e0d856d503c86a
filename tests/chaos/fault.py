"""What a fault is, what came of it, and the seconds within which things must happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from tests.chaos.victim import PATIENCE_SECONDS
from tests.support.serving import until

REPLACED_SECONDS, NOTICED_SECONDS, ENDED_SECONDS, ANSWERED_SECONDS = 30.0, 15.0, 10.0, 2.0
"""Ready again after an engine's death; a hang noticed; a service ended; its running requests ended."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What a fault led to: in words, with its seconds, and whether it is what must happen.

    `numbers` are the measured values that the words are made of.
    """

    words: str
    seconds: float
    as_must: bool
    numbers: Mapping[str, float | None] = field(default_factory=dict)


Experiment = Callable[[Path], Happened]
"""Gets an empty folder, and says what happened. Raises NotPossible where this machine lacks what it needs."""


class NotPossible(Exception):
    """What a fault needs and this machine lacks; the message says what."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`must` is what has to happen."""

    name: str
    must: str
    run: Experiment


def seconds_until(condition: Callable[[], object], what: str, patience: float = PATIENCE_SECONDS) -> float:
    """The seconds until `condition` holds."""
    began = monotonic()
    until(condition, what, patience)
    return monotonic() - began
