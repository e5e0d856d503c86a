"""The bisection for the highest rate that meets an SLO."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.plan.cells import Cell
from loadtests.plan.presets import make_plan
from loadtests.plan.rate_search import (
    HIGHEST,
    LOWEST,
    PROBES,
    RateSearch,
    probe_of,
    probe_requests,
    searched,
)
from loadtests.plan.slo import Slo


def probed(capacity: float, knee: float) -> tuple[float | None, list[float]]:
    """What is found where every rate up to `knee` meets the SLO, and the rates that were probed."""
    search, rates = RateSearch(capacity), list[float]()
    while (rate := search.next_rate()) is not None:
        rates.append(rate)
        search.add(rate, met=rate <= knee)
    return search.rate, rates


@given(st.floats(0.1, 1000), st.floats(LOWEST + 0.02, HIGHEST - 0.02))
def test_a_rate_within_the_bracket_is_found_from_below(capacity: float, share: float) -> None:
    found, rates = probed(capacity, share * capacity)
    assert found is not None
    assert found <= share * capacity <= found + capacity * (HIGHEST - LOWEST) / 2 ** (PROBES - 1)
    assert len(rates) == PROBES


def test_a_mode_that_misses_its_slo_everywhere_is_tried_at_the_lowest_rate_last() -> None:
    found, rates = probed(10.0, 0.0)
    assert found is None
    assert rates[-1] == pytest.approx(10 * LOWEST)
    assert len(rates) == PROBES


def test_a_mode_that_meets_it_at_the_lowest_rate_only_has_that_rate() -> None:
    assert probed(10.0, 1.0)[0] == pytest.approx(1.0)


def test_a_mode_that_meets_it_everywhere_ends_below_the_upper_end() -> None:
    found, _ = probed(10.0, 1e9)
    assert found is not None
    assert 12.8 < found < 13.0


@pytest.mark.parametrize(
    ("share", "requests"), [(0.5, 60), (0.95, 60), (0.98, 150), (0.999, 200), (1.0, 200)]
)
def test_a_stricter_share_takes_more_requests_within_bounds(share: float, requests: int) -> None:
    assert probe_requests(Slo(e2e_seconds=1.0, share=share)) == requests


def test_cells_that_differ_in_load_only_have_one_search() -> None:
    plan = make_plan("saturation", modes=["eager", "compiled"])
    assert [cell.mode for cell in searched(plan)] == ["eager", "compiled"]
    assert searched(make_plan("standard")) == []


def test_a_probe_is_the_same_work_at_a_rate_of_its_own() -> None:
    cell = Cell(mode="eager", batch_size=2, new_tokens=8, load=0.9, share_of="search", arrivals="constant")
    probe = probe_of(cell, 7.5, Slo(e2e_seconds=1.0))
    assert probe.name == "eager b=2 short n=8 rate=7.5/s constant"
    assert probe.requests == 60
