"""The rule that marks a measurement as disturbed."""

from __future__ import annotations

import pytest

from service.statistics.choice import is_disturbed


@pytest.mark.parametrize(
    ("switches", "steps", "disturbed"),
    [(0, 0, False), (0, 100, False), (1, 20, False), (1, 19, True), (5, 100, False), (6, 100, True)],
)
def test_more_than_one_switch_per_twenty_steps_is_a_disturbance(
    switches: int, steps: int, disturbed: bool
) -> None:
    assert is_disturbed(switches, steps) == disturbed
