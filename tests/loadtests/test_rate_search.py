"""The bisection for the highest rate that meets an SLO."""

from __future__ import annotations

from collections.abc import Collection

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


def probed(capacity: float, knee: float, stalled: Collection[int] = ()) -> tuple[float | None, list[float]]:
    """What is found where every rate up to `knee` meets the SLO, and the rates that were probed.

    In the probes numbered `stalled`, from 0, a tenth of the requests misses it whatever the rate is.
    """
    search, rates = RateSearch(capacity, 0.95), list[float]()
    while (rate := search.next_rate()) is not None:
        met_share = (1.0 if rate <= knee else 0.3) - 0.1 * (len(rates) in stalled)
        rates.append(rate)
        search.add(rate, met_share, cut=False)
    return search.rate, rates


@given(st.floats(0.1, 1000), st.floats(LOWEST + 0.02, HIGHEST - 0.02))
def test_a_rate_within_the_bracket_is_found_from_below(capacity: float, share: float) -> None:
    found, rates = probed(capacity, share * capacity)
    assert found is not None
    assert found <= share * capacity <= found + capacity * (HIGHEST - LOWEST) / 2 ** (PROBES - 1)
    assert len(rates) == PROBES


@pytest.mark.parametrize("stalled", [0, 3])
def test_one_stall_of_the_machine_does_not_lead_the_search_astray(stalled: int) -> None:
    found, rates = probed(10.0, 8.0, [stalled])
    assert found == pytest.approx(8.0, abs=0.2)
    assert len(set(rates)) == PROBES - 1


def test_a_rate_that_misses_narrowly_twice_is_missed() -> None:
    found, rates = probed(10.0, 8.0, [0, 1])
    assert rates[0] == rates[1]
    assert found is not None
    assert found < rates[0] < 8.0


def test_a_probe_that_was_cut_is_missed_whatever_its_share_is() -> None:
    search = RateSearch(10.0, 0.95)
    first = search.next_rate()
    assert first is not None
    search.add(first, 1.0, cut=True)
    assert search.rate is None
    assert (search.next_rate() or 0) < first


def test_a_mode_that_misses_its_slo_everywhere_is_tried_at_the_lowest_rate_last() -> None:
    found, rates = probed(10.0, 0.0)
    assert found is None
    assert rates[-1] == pytest.approx(10 * LOWEST)
    assert len(rates) == PROBES


@pytest.mark.parametrize(("at_the_lowest", "probes"), [(0.0, 2), (1.0, PROBES)])
def test_where_no_request_is_in_time_the_lowest_rate_is_asked_for_at_once(
    at_the_lowest: float, probes: int
) -> None:
    search, rates = RateSearch(10.0, 0.95), list[float]()
    while (rate := search.next_rate()) is not None:
        rates.append(rate)
        search.add(rate, at_the_lowest if rate == pytest.approx(1.0) else 0.0, cut=False)
    assert rates[1] == pytest.approx(10 * LOWEST)
    assert len(rates) == probes
    assert (search.rate is None) == (at_the_lowest == 0.0)


def test_a_mode_that_meets_it_at_the_lowest_rate_only_has_that_rate() -> None:
    assert probed(10.0, 1.0)[0] == pytest.approx(1.0)


def test_a_mode_that_meets_it_everywhere_ends_below_the_upper_end() -> None:
    found, _ = probed(10.0, 1e9)
    assert found is not None
    assert 12.8 < found < 13.0


@pytest.mark.parametrize(
    ("share", "requests"), [(0.5, 120), (0.95, 120), (0.98, 150), (0.999, 200), (1.0, 200)]
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
    assert probe.requests == 120
