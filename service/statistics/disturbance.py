"""When other work on the engine's core has disturbed a measurement. Imports nothing else of ours."""

from __future__ import annotations

STEPS_PER_SWITCH = 20
"""Steps in which one involuntary context switch is still accepted."""


def is_disturbed(involuntary_switches: float, steps: float) -> bool:
    """Whether the measuring thread lost its core more than once per 20 steps; counts, or means of both."""
    return involuntary_switches * STEPS_PER_SWITCH > steps
