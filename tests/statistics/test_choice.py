"""The rule of verdicts: what counts as a difference, what is shipped, and when a sweep may stop."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.statistics.choice import (
    MARGIN,
    MINIMUM_ROUNDS,
    Choice,
    Rounds,
    choose,
    choose_each,
    compare,
    confidence_of,
    interim_checks,
    is_disturbed,
)

LADDER = ("eager", "no_grad", "inference_mode", "compiled", "reduce-overhead")

durations = st.floats(1e-6, 1e3)
rounds = st.lists(durations, min_size=8, max_size=20).map(lambda values: dict(enumerate(values, 1)))


def made(
    true: dict[str, float], seed: int, count: int = 8, scatter: float = 0.015, spikes: float = 0.0
) -> dict[str, Rounds]:
    """Synthetic rounds: modes of `true` latency under a shared drift of 30 %, and scatter of their own.

    A share `spikes` of the values is 40 % too long, as where a neighbour took the cache.
    """
    random = Random(f"{seed}")
    found: dict[str, dict[int, float]] = {mode: {} for mode in true}
    for number in range(1, count + 1):
        drift = 0.3 * math.sin(number / 3)
        for mode, seconds in true.items():
            spike = 1.4 if random.random() < spikes else 1.0
            found[mode][number] = seconds * spike * math.exp(drift + random.gauss(0, scatter))
    return dict(found)


def answer_when_stopped(true: dict[str, float], seed: int, scatter: float = 0.015) -> Choice:
    """The answer of a sweep of 8 to 24 rounds, which stops at its first check that resolves it."""
    planned = interim_checks(8, 24)
    everything = made(true, seed, 24, scatter)
    for count in planned:
        seen = {mode: {n: v for n, v in own.items() if n <= count} for mode, own in everything.items()}
        found = choose(seen, confidence_of(len(planned)))
        assert found is not None
        if found.state != "not resolved":
            break
    return found


def test_below_eight_shared_rounds_nothing_is_decided() -> None:
    seen = made({"eager": 2.0, "compiled": 1.0}, seed=1, count=MINIMUM_ROUNDS - 1)
    assert compare(seen["eager"], seen["compiled"]).word == "undecided"
    assert choose(seen) is None


def test_a_sure_difference_within_two_percent_is_called_equal() -> None:
    seen = made({"eager": 1.01, "no_grad": 1.0}, seed=1, scatter=0.001)
    comparison = compare(seen["eager"], seen["no_grad"])
    assert comparison.speedup.excludes_one
    assert comparison.equivalent
    assert comparison.word == "no detectable difference"
    one = dict.fromkeys(range(1, 9), 1.0)
    beyond = {n: 1.03 + 0.002 * (-1) ** n for n in one}
    assert [compare(beyond, one).word, compare(one, beyond).word] == ["faster", "slower"]


def test_the_noise_of_eager_decides_nothing_between_two_other_modes() -> None:
    # reduce-overhead leads by 8 % in every round, while eager scatters by half.
    seen = made({"inference_mode": 1.0, "compiled": 0.54, "reduce-overhead": 0.5}, seed=2, scatter=0.01)
    wild = made({"eager": 1.5}, seed=3, scatter=0.5)
    choice = choose({**wild, **seen})
    assert choice == Choice("reduce-overhead", "reduce-overhead", "inference_mode", "faster")


def steady(ratio: float, scatter: float = 0.002) -> Rounds:
    """Rounds whose ratio to those of 1.0 has an interval of about ± `scatter`."""
    return {n: ratio * math.exp(scatter * (-1) ** n) for n in range(1, 17)}


def test_the_simplest_mode_within_the_margin_of_the_fastest_is_shipped() -> None:
    plain = {"eager": steady(2.0), "inference_mode": steady(1.5)}
    found = choose({**plain, "compiled": steady(1.03), "reduce-overhead": steady(1.0, 0.0)})
    assert found == Choice("compiled", "reduce-overhead", "inference_mode", "faster", ("compiled",))
    found = choose({**plain, "compiled": steady(1.07), "reduce-overhead": steady(1.0, 0.0)})
    assert found == Choice("reduce-overhead", "reduce-overhead", "inference_mode", "faster")


def test_where_nothing_is_faster_by_more_than_the_margin_the_baseline_is_shipped() -> None:
    found = choose({"eager": steady(1.01), "inference_mode": steady(1.03), "compiled": steady(1.0, 0.0)})
    assert (found.ship, found.state, found.fastest) == ("inference_mode", "equivalent", "compiled")
    alone = choose({"inference_mode": steady(1.0), "compiled": steady(1.5)})
    assert alone == Choice("inference_mode", "inference_mode", "inference_mode", "equivalent")


def test_noise_earns_no_simpler_answer() -> None:
    modes = {"inference_mode": steady(1.1, 0.4), "compiled": steady(1.0, 0.0)}
    found = choose(modes)
    assert (found.ship, found.state, found.unresolved) == ("compiled", "not resolved", ("inference_mode",))
    assert found.rounds_needed > 16
    resolved = choose({**modes, "inference_mode": steady(1.1, 0.02)})
    assert resolved.state == "faster"


def test_without_inference_mode_the_first_mode_is_the_baseline() -> None:
    found = choose({"eager": steady(2.0), "compiled": steady(1.0)})
    assert (found.baseline, found.ship) == ("eager", "compiled")
    assert choose({"eager": {1: 1.0}}) == Choice("eager", "eager", "eager", "equivalent")


def test_batch_sizes_share_one_error() -> None:
    """Of two, one at the edge: told apart at the confidence of one comparison, not at that of both."""
    sure = {"inference_mode": steady(2.0), "compiled": steady(1.0, 0.0)}
    edge = {"inference_mode": steady(1.06, 0.1), "compiled": steady(1.0, 0.0)}
    alone = choose_each({4: edge})[4]
    assert alone.state == "faster"
    both = choose_each({1: sure, 4: edge})
    assert [one.state for one in both.values() if one] == ["faster", "not resolved"]
    assert not both[1].unresolved
    checked = choose_each({4: edge}, checks=3)[4]
    assert checked.state == "not resolved"


def test_nothing_is_equivalent_while_a_mode_may_be_faster_by_more_than_the_margin() -> None:
    """The fastest by its mean is near, another that scatters may be far."""
    near, far = steady(0.965, 0.0), steady(0.975, 0.1)
    found = choose({"inference_mode": steady(1.0, 0.0), "compiled": far, "reduce-overhead": near})
    assert (found.ship, found.state, found.unresolved) == ("inference_mode", "not resolved", ("compiled",))


def test_many_equal_modes_are_called_different_in_at_most_one_sweep_of_twenty() -> None:
    """Six at a scatter of 5 %, with 400 sweeps: 5 % and its own error."""
    true = dict.fromkeys((*LADDER, "aot-inductor"), 1.0)
    states = [answer_when_stopped(true, seed, scatter=0.05).state for seed in range(400)]
    assert states.count("faster") / len(states) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)


def test_only_rounds_that_every_mode_has_are_judged() -> None:
    seen = made({"eager": 2.0, "compiled": 1.0}, seed=6, count=12)
    partial = {n: value for n, value in seen["compiled"].items() if n > 4}
    assert choose({**seen, "compiled": partial}) is not None
    assert choose({**seen, "compiled": {n: v for n, v in partial.items() if n > 5}}) is None


@pytest.mark.parametrize(("ratio", "least"), [(1.1, 0.95), (1.3, 1.0)])
def test_a_real_difference_is_found_by_the_time_the_sweep_stops(ratio: float, least: float) -> None:
    true = {"inference_mode": ratio, "compiled": 1.0}
    found = [answer_when_stopped(true, seed) for seed in range(200)]
    assert [(one.ship, one.state) for one in found].count(("compiled", "faster")) >= least * len(found)


def test_the_confidence_of_a_check_makes_up_for_the_other_checks() -> None:
    assert interim_checks(8, 24) == (8, 16, 24)
    assert interim_checks(8, 8) == (8,)
    assert confidence_of(1) == 0.95
    assert confidence_of(3) == pytest.approx(1 - 0.05 / 3)


@given(st.lists(rounds, min_size=3, max_size=5))
def test_what_is_shipped_is_the_fastest_or_within_the_margin_of_it(modes: list[dict[int, float]]) -> None:
    named = dict(zip(LADDER, modes, strict=False))
    shared = set.intersection(*map(set, named.values()))
    named = {mode: {n: v for n, v in own.items() if n in shared} for mode, own in named.items()}
    choice = choose(named)
    assert choice.ship in (choice.fastest, *choice.alike)
    assert not {choice.ship, choice.fastest} & {*choice.unresolved} - {choice.baseline}
    for mode in choice.alike:
        between = compare(named[mode], named[choice.fastest]).speedup
        assert 1 / MARGIN <= between.low <= between.high <= MARGIN


@pytest.mark.parametrize(
    ("switches", "steps", "disturbed"),
    [(0, 0, False), (0, 100, False), (1, 20, False), (1, 19, True), (5, 100, False), (6, 100, True)],
)
def test_more_than_one_switch_per_twenty_steps_is_a_disturbance(
    switches: int, steps: int, disturbed: bool
) -> None:
    assert is_disturbed(switches, steps) == disturbed
