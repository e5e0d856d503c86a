"""Which mode to ship: paired comparisons of modes over rounds, and the choice between them.

Rounds are the unit of replication. Imports nothing else of ours; sweep, report, advice and compare use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from service.statistics.intervals import Interval

Word = Literal["faster", "slower", "no detectable difference", "undecided"]
Rounds = Mapping[int, float]
"""By round, the median latency of a mode's requests in it, in seconds."""

MINIMUM_ROUNDS = 8
"""A comparison over fewer rounds is called undecided."""

EQUIVALENT = 1.02
"""Two modes whose whole interval lies within this factor are called equal."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The speed-up of one mode over another (baseline / candidate), and its verdict."""

    speedup: Interval
    word: Word


@dataclass(frozen=True, slots=True)
class Choice:
    """The mode to ship, the fastest one, and the others that are tied with the fastest.

    `given_up` is the fastest's speed-up over the one to ship, with its interval; None where both are one.
    """

    ship: str
    fastest: str
    tied: tuple[str, ...]
    given_up: Interval | None
