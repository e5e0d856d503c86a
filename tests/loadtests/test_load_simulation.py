"""The simulated queue behaves as queues do, and a sweep of it finds the knee that it has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loadtests.load_simulation import knee_accuracy, quantile_accuracy
from loadtests.simulated_queue import SimulatedQueue, simulated_visits
from loadtests.simulated_sweeps import LoadSweep, true_knee

SWEEP = LoadSweep(rates=(0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2))


def test_the_knees_interval_covers_the_true_one_and_its_bias_is_small() -> None:
    single, ratio = knee_accuracy(SWEEP, 60)
    assert abs(single.error or 1) < 0.04
    assert abs(ratio.error or 1) < 0.08
    assert min(single.covered, ratio.covered) >= 0.90


def test_visits_too_short_for_their_objective_find_a_knee_that_is_too_high() -> None:
    loose = replace(SWEEP, limit=20.0)
    single, _ = knee_accuracy(loose, 20)
    longer, _ = knee_accuracy(replace(loose, requests=400), 20)
    assert single.error is None or single.error > 0.1
    assert abs(longer.error or 1) < 0.04


def test_quantiles_cover_where_a_visit_settles_and_do_not_where_it_cannot() -> None:
    settled, _ = quantile_accuracy(0.5, 100, 8, 0.5, 100)
    not_settled, _ = quantile_accuracy(0.95, 100, 8, 0.5, 100)
    assert settled.covered >= 0.90
    assert abs(settled.error or 1) < 0.03
    assert not_settled.error is not None
    assert not_settled.error < -0.2


def test_a_looser_objective_has_a_higher_knee_below_saturation() -> None:
    knees = [true_knee(replace(SWEEP, limit=limit)) for limit in (3.0, 6.0, 20.0)]
    assert knees == sorted(knees)
    assert 0.3 < knees[0] < knees[-1] < 1.0


def test_a_full_queue_refuses_and_an_accepted_request_waits_for_no_more_than_it_holds() -> None:
    queue = SimulatedQueue(variation=0.01, bound=5)
    visits = simulated_visits(queue, np.full(4, 3.0), np.ones(4), 200, np.random.default_rng(1))
    assert np.isnan(visits.latencies).any()
    # Its own time, five that wait, and what is left of the one in service.
    assert np.nanmax(visits.latencies) < 7.2
    served = np.count_nonzero(~np.isnan(visits.latencies), axis=1) / visits.due[:, -1]
    assert served == pytest.approx(1.0, abs=0.15)
