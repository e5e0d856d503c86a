"""The sweep's statistics: known cases, and what must hold for any durations."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.report.findings import slowest_over_fastest, typical
from loadtests.run.schedule import WarmUp
from service.statistics.choice import choose, compare

durations = st.floats(1e-6, 1e3)
rounds = st.lists(durations, min_size=8, max_size=20).map(lambda values: dict(enumerate(values, 1)))


def steady(value: float, wobble: float = 0.01, count: int = 8) -> dict[int, float]:
    """Rounds around `value`, up and down in turn."""
    return {n: value * (1 + wobble * (-1) ** n) for n in range(1, count + 1)}


def drifting(value: float, spread: float, phase: int = 0, count: int = 8) -> dict[int, float]:
    """Rounds that scatter widely and, by `phase`, independently."""
    return {n: value * math.exp(spread * math.sin(2.5 * n + phase)) for n in range(1, count + 1)}


def test_half_the_time_is_twice_as_fast() -> None:
    comparison = compare(steady(0.2), steady(0.1))
    assert comparison.speedup.value == pytest.approx(2)
    assert comparison.word == "faster"


def test_twice_the_time_is_slower() -> None:
    assert compare(steady(0.1), steady(0.2)).word == "slower"


def test_a_drift_that_both_share_does_not_hide_a_small_difference() -> None:
    base = drifting(1.0, 0.5)
    candidate = {number: value / 1.02 * (1 + 0.001 * (-1) ** number) for number, value in base.items()}
    assert compare(base, candidate).word == "faster"


def test_independent_scatter_is_no_detectable_difference() -> None:
    assert compare(drifting(1.0, 0.3), drifting(1.0, 0.3, phase=2)).word == "no detectable difference"


def test_below_eight_rounds_nothing_is_decided() -> None:
    assert compare(steady(0.2, count=7), steady(0.1, count=7)).word == "undecided"
    assert choose({"eager": steady(0.2, count=7), "compiled": steady(0.1, count=7)}) is None


def test_only_shared_rounds_are_compared() -> None:
    partial = dict.fromkeys(range(5, 13), 0.1)
    assert compare(steady(0.2, count=12), partial).speedup.samples == 8
    with pytest.raises(ValueError, match="at least one value"):
        compare({1: 0.1}, {2: 0.1})


@given(rounds)
def test_a_mode_is_not_different_from_itself(values: dict[int, float]) -> None:
    comparison = compare(values, values)
    assert comparison.speedup.value == pytest.approx(1)
    assert comparison.word == "no detectable difference"


@given(rounds, rounds, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(
    first: dict[int, float], second: dict[int, float], unit: float
) -> None:
    scaled = [{number: value * unit for number, value in values.items()} for values in (first, second)]
    assert compare(*scaled).speedup.value == pytest.approx(compare(first, second).speedup.value, rel=1e-6)


@given(rounds, rounds)
def test_swapping_sides_inverts_the_speedup(first: dict[int, float], second: dict[int, float]) -> None:
    there = compare(first, second).speedup
    back = compare(second, first).speedup
    assert there.value * back.value == pytest.approx(1, rel=1e-6)
    opposite = {"faster": "slower", "slower": "faster"}
    word = compare(first, second).word
    assert compare(second, first).word == opposite.get(word, word)


@given(rounds, rounds)
def test_the_speedup_is_the_ratio_of_the_typical_latencies_shown(
    first: dict[int, float], second: dict[int, float]
) -> None:
    shared = first.keys() & second.keys()
    first, second = ({n: values[n] for n in shared} for values in (first, second))
    ratio = typical(first).value / typical(second).value
    assert compare(first, second).speedup.value == pytest.approx(ratio, rel=1e-6)


def test_the_fastest_is_shipped_where_nothing_is_like_it() -> None:
    choice = choose({"eager": steady(0.3), "no_grad": steady(0.2), "compiled": steady(0.1)})
    assert choice is not None
    assert (choice.ship, choice.fastest, choice.tied) == ("compiled", "compiled", ())


def test_of_modes_alike_the_simplest_is_shipped() -> None:
    modes = {
        "eager": steady(0.3),
        "compiled": drifting(0.101, 0.05),
        "reduce-overhead": drifting(0.1, 0.05, 3),
    }
    choice = choose(modes)
    assert choice is not None
    assert (choice.ship, choice.fastest, choice.tied) == ("compiled", "reduce-overhead", ("compiled",))


def test_eager_is_shipped_where_nothing_beats_it() -> None:
    choice = choose({"eager": drifting(0.1, 0.1), "compiled": drifting(0.099, 0.1, 3)})
    assert choice is not None
    assert choice.ship == "eager"


def test_a_mode_that_is_not_faster_than_eager_is_not_shipped_for_being_like_the_fastest() -> None:
    eager = steady(1.0, 0.001)
    fastest = {number: value / 1.03 for number, value in eager.items()}
    between = {n: value / 1.015 * math.exp(0.03 * math.sin(2.5 * n)) for n, value in eager.items()}
    choice = choose({"eager": eager, "no_grad": between, "compiled": fastest})
    assert choice is not None
    assert choice.tied == ("no_grad",)
    assert choice.ship == "compiled"


def test_modes_are_as_far_apart_as_the_slowest_from_the_fastest() -> None:
    assert slowest_over_fastest({"eager": steady(0.3), "compiled": steady(0.1)}) == pytest.approx(3)


def passes(*factors: float, counters: tuple[float, ...] = ()) -> WarmUp:
    """A warm-up with one pass per factor, over four cells."""
    warmup = WarmUp(2, 6)
    for number, factor in enumerate(factors):
        latencies = {
            f"cell {n}": factor * (0.1 + 0.01 * n) * (1 + 0.002 * (-1) ** (n + number)) for n in range(4)
        }
        count = counters[number] if counters else 0.0
        warmup.add(latencies, {"launchbound_recompiles_total": count})
    return warmup


def test_warming_up_takes_two_passes_at_least() -> None:
    assert not passes(1.0).settled
    assert passes(1.0, 1.0).settled


def test_warming_up_goes_on_while_latency_falls() -> None:
    assert not passes(2.0, 1.0).settled
    assert passes(2.0, 1.0, 1.0).settled


def two_passes(*changes: float) -> WarmUp:
    """Two passes; each cell's latency is so many times as long in the second."""
    warmup = WarmUp(2, 6)
    warmup.add({f"cell {n}": 0.1 for n in range(len(changes))}, {})
    warmup.add({f"cell {n}": 0.1 * change for n, change in enumerate(changes)}, {})
    return warmup


def test_a_latency_that_fell_by_18_percent_is_a_slope_however_wide_its_interval() -> None:
    wild = two_passes(0.45, 1.3, 0.6, 1.28)
    assert "-18.1%" in wild.reason
    assert not wild.settled
    assert not two_passes(0.82).settled


def test_a_small_fall_is_a_slope_only_where_the_cells_agree_on_it() -> None:
    assert two_passes(0.8, 1.1, 0.9, 1.05).settled
    assert not two_passes(0.94, 0.945, 0.95, 0.935).settled
    assert two_passes(0.98, 0.981, 0.979, 0.98).settled


def test_a_rising_latency_does_not_prolong_warming_up() -> None:
    assert passes(1.0, 1.3).settled


def test_warming_up_goes_on_while_something_compiles() -> None:
    assert not passes(1.0, 1.0, counters=(0, 1)).settled
    assert passes(1.0, 1.0, 1.0, counters=(0, 1, 1)).settled


def test_warming_up_is_given_up_after_its_last_pass() -> None:
    warmup = WarmUp(2, 3)
    over = [warmup.add({"a": 4.0**-n, "b": 3.9**-n}, {}) for n in range(3)]
    assert over == [False, False, True]
    assert not warmup.settled
