"""A queue's wait follows from arrivals and times in service, and in the long run from their moments."""

from __future__ import annotations

import numpy as np
import pytest

from service.statistics.knee import pollaczek_khinchine, replayed_waits


def test_constant_service_waits_half_as_long_as_exponential_service() -> None:
    random = np.random.default_rng(1)
    exponential = pollaczek_khinchine(0.5, random.exponential(size=200_000).tolist())
    constant = pollaczek_khinchine(0.5, [1.0])
    assert constant == pytest.approx(0.5)
    assert exponential == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("rate", [1.0, 1.5])
def test_a_server_that_is_always_busy_has_no_steady_state(rate: float) -> None:
    assert pollaczek_khinchine(rate, [1.0]) is None


def test_waits_are_replayed_by_hand() -> None:
    assert replayed_waits([0.0, 1.0, 1.5, 9.0], [2.0, 1.0, 1.0, 1.0]) == [0.0, 1.0, 1.5, 0.0]


def test_a_long_replay_of_poisson_arrivals_waits_as_the_formula_says() -> None:
    random = np.random.default_rng(3)
    arrivals = np.cumsum(random.exponential(1 / 0.6, size=200_000)).tolist()
    service = random.lognormal(-0.02, 0.2, size=200_000).tolist()
    formula = pollaczek_khinchine(0.6, service)
    assert float(np.mean(replayed_waits(arrivals, service))) == pytest.approx(formula, rel=0.05)
