"""How often simulated sweeps, stopped and judged by the project's own rules, come to the right verdict."""

from __future__ import annotations

import pytest

from loadtests.plan.cells import Plan
from loadtests.simulation import World, adaptive, fixed, rates, swept

SEEDS = 200
ROUGH = World(visit=0.03, drift=0.2, spikes=0.05)
PLANS = [fixed(8), fixed(20), adaptive(), adaptive("quick")]


@pytest.mark.parametrize("plan", PLANS)
def test_equal_modes_are_called_alike_despite_drift_and_spikes(plan: Plan) -> None:
    found = rates(plan, ROUGH, 1.0, SEEDS)
    # 93 % by the long run; so few sweeps scatter by 1.8 %.
    assert found.alike >= 0.93 - 0.036
    assert found.covered >= 0.93 - 0.036


def test_a_difference_of_five_percent_is_seen_at_the_standard_plans_size() -> None:
    found = rates(adaptive(), ROUGH, 1.05, SEEDS)
    assert found.faster >= 0.8
    assert found.slower == 0
    assert found.covered >= 0.90


def test_bursts_that_slow_whole_visits_cost_power_and_turn_no_verdict_round() -> None:
    plain, bursts = (rates(adaptive(), World(visit=0.03, bursts=share), 1.05, 100) for share in (0.0, 0.05))
    assert bursts.faster < plain.faster
    assert bursts.slower == 0


def test_a_machine_that_scatters_more_takes_more_rounds_and_sees_less() -> None:
    quiet, busy = (rates(adaptive(), World(visit=visit), 1.05, 60) for visit in (0.02, 0.09))
    assert quiet.rounds < busy.rounds
    assert quiet.faster > busy.faster


def test_a_large_difference_stops_a_sweep_at_its_first_look() -> None:
    comparison, count = swept(adaptive(), World(visit=0.02), 1.5, seed=1)
    assert (comparison.word, count) == ("faster", adaptive().looks[0])
