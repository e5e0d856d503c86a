"""Colours and scales: one colour per mode and per part of a request, the same on every board."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MODE_COLOURS: Mapping[str, str] = {
    "eager": "#7A8B99",
    "no_grad": "#3D85C6",
    "inference_mode": "#2A9D8F",
    "compiled": "#E9A23B",
    "reduce-overhead": "#D1495B",
    "cuda-graph": "#9C6B4E",
    "compiled-captured": "#A67C00",
    "max-autotune": "#7B4B94",
    "aot-inductor": "#1F3A5F",
    "fallback": "#B5651D",
}
"""By mode, in the order of the ladder; `fallback` is what ran as another mode than the requested one."""

PART_COLOURS: Mapping[str, str] = {
    "queue": "#B0B7C3",
    "dispatch": "#C2549D",
    "sync wait": "#8D6CAB",
    "stall": "#A3485E",
    "kernel": "#5B8C5A",
    "other": "#D9CBA3",
}
"""By part of a request's time, in the order in which they are stacked."""

SIDE_COLOURS: Mapping[str, str] = {"client": "#3D85C6", "server": "#E9A23B", "users": "#3D85C6"}
"""By the side that counted."""

SAMPLE_COLOURS: Mapping[str, str] = {
    "kernel": PART_COLOURS["kernel"],
    "host": PART_COLOURS["dispatch"],
    "system": "#8D6CAB",
    "unclassified": "#B0B7C3",
}
"""By where the engine's thread was."""

OUTCOME_COLOURS: Mapping[str, str] = {
    "ok": "#2A9D8F",
    "error": "#D1495B",
    "timeout": "#E9A23B",
    "oom": "#7B1E3A",
    "cancelled": "#7A8B99",
    "rejected": "#8E6BBF",
}
"""By how a request ended."""

GOOD = "#2A9D8F"
WARN = "#E9A23B"
BAD = "#D1495B"
NEUTRAL = "#7A8B99"

PALETTE = ("#4C72B0", "#DD8452", "#55A868", "#C44E52", "#8172B3", "#937860")
"""For modes and series without a colour of their own, in this order."""


def mode_colour(mode: str, modes: Iterable[str]) -> str:
    """The colour of `mode`, one of `modes`: its own, else the next of the palette among those without one.

    NEUTRAL for a mode that is neither in MODE_COLOURS nor in `modes`.
    """
    if mode in MODE_COLOURS:
        return MODE_COLOURS[mode]
    without_one = [other for other in modes if other not in MODE_COLOURS]
    return PALETTE[without_one.index(mode) % len(PALETTE)] if mode in without_one else NEUTRAL


@dataclass(frozen=True, slots=True)
class Scale:
    """Which value gets which colour: `base` below the first of the ascending `steps` (value, colour)."""

    base: str = NEUTRAL
    steps: tuple[tuple[float, str], ...] = ()


PLAIN = Scale()
AT_LEAST_ONE = Scale(BAD, ((1.0, GOOD),))
SHARE_LOST = Scale(GOOD, ((0.01, WARN), (0.05, BAD)))
SHARE_KEPT = Scale(BAD, ((0.95, WARN), (0.99, GOOD)))
NONE_EXPECTED = Scale(GOOD, ((0.001, BAD),))
PARITY = Scale(GOOD, ((1e-4, WARN),))
"""Logit difference: float32's tolerance where the largest logit is 10; narrower types may exceed it."""
