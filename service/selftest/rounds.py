"""Interleaving: every arm once per round in a fresh seeded order, so that drift meets all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TypeVar

Key = TypeVar("Key")
Say = Callable[[str], None]
"""Told what is going on, often enough that nobody wonders."""


def in_rounds(
    arms: Mapping[Key, Callable[[], float]], count: int, seed: str, say: Say
) -> dict[Key, list[float]]:
    """What each arm returned, round by round."""
    found: dict[Key, list[float]] = {key: [] for key in arms}
    for number in range(count):
        say(f"round {number + 1} of {count}")
        keys = list(arms)
        Random(f"{seed}/{number}").shuffle(keys)
        for key in keys:
            found[key].append(arms[key]())
    return found
