"""The rule of verdicts: what counts as a difference, what is shipped, and when a sweep may stop."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.statistics.choice import (
    CHECKS,
    EQUIVALENT,
    MINIMUM_ROUNDS,
    Rounds,
    choose,
    compare,
    confidence_of,
    decided,
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


def stopped(true: dict[str, float], seed: int, scatter: float = 0.015, spikes: float = 0.0) -> int:
    """The look at which a sweep of 8 to 24 rounds would stop."""
    planned = interim_checks(8, 24)
    everything = made(true, seed, 24, scatter, spikes)
    for count in planned:
        seen = {mode: {n: v for n, v in own.items() if n <= count} for mode, own in everything.items()}
        if decided(seen, confidence_of(len(planned))):
            return count
    return planned[-1]


def words_when_stopped(ratio: float, seeds: range, **disturbance: float) -> list[str]:
    """By seed, the verdict between two modes when a sweep stops at its first look that decides."""
    found = []
    for seed in seeds:
        count = stopped({"a": ratio, "b": 1.0}, seed, **disturbance)
        seen = made({"a": ratio, "b": 1.0}, seed, 24, **disturbance)
        first, second = ({n: v for n, v in seen[mode].items() if n <= count} for mode in "ab")
        found.append(compare(first, second, confidence_of(CHECKS)).word)
    return found


def test_below_eight_shared_rounds_nothing_is_decided() -> None:
    seen = made({"eager": 2.0, "compiled": 1.0}, seed=1, count=MINIMUM_ROUNDS - 1)
    assert compare(seen["eager"], seen["compiled"]).word == "undecided"
    assert choose(seen) is None
    assert not decided(seen, 0.95)


def test_a_sure_difference_within_two_percent_is_called_equal() -> None:
    seen = made({"eager": 1.01, "no_grad": 1.0}, seed=1, scatter=0.001)
    comparison = compare(seen["eager"], seen["no_grad"])
    assert comparison.speedup.excludes_one
    assert comparison.equivalent
    assert comparison.word == "no detectable difference"


def test_a_difference_whose_interval_reaches_over_two_percent_counts() -> None:
    first = {n: 1.03 + 0.002 * (-1) ** n for n in range(1, 9)}
    assert compare(first, dict.fromkeys(range(1, 9), 1.0)).word == "faster"
    assert compare(dict.fromkeys(range(1, 9), 1.0), first).word == "slower"


def test_the_noise_of_eager_decides_nothing_between_two_other_modes() -> None:
    # compiled-cpp leads by 8 % in every round, while eager scatters by half.
    seen = made({"compiled": 0.54, "reduce-overhead": 0.5}, seed=2, scatter=0.01)
    wild = made({"eager": 1.5}, seed=3, scatter=0.5)
    choice = choose({**wild, **seen})
    assert choice is not None
    assert (choice.ship, choice.tied, choice.given_up) == ("reduce-overhead", (), None)


def test_a_tie_names_both_and_what_the_simpler_one_gives_up() -> None:
    seen = made({"eager": 2.0, "reduce-overhead": 1.0}, seed=4, scatter=0.03)
    fastest = "reduce-overhead"
    slower = {n: value * 1.004 for n, value in seen[fastest].items()}
    tied = choose({"eager": seen["eager"], "compiled": slower, fastest: seen[fastest]})
    assert tied is not None
    assert (tied.ship, tied.fastest, tied.tied) == ("compiled", fastest, ("compiled",))
    assert tied.given_up is not None
    assert tied.given_up.value == pytest.approx(1.004)
    assert tied.at_most == tied.given_up.high


def test_what_ships_although_it_is_the_fastest_may_still_be_slower_than_what_it_is_tied_with() -> None:
    seen = made({"eager": 2.0, "compiled": 1.0, "reduce-overhead": 1.02}, seed=6, scatter=0.03)
    tied = choose(seen)
    assert tied is not None
    assert (tied.ship, tied.tied, tied.given_up) == ("compiled", ("reduce-overhead",), None)
    assert tied.at_most == compare(seen["compiled"], seen["reduce-overhead"]).speedup.high
    assert tied.at_most > 1


def test_where_all_of_a_tie_is_slower_within_two_percent_nothing_is_given_up_at_most() -> None:
    compiled = made({"compiled": 1.0}, seed=4)["compiled"]
    slower = {n: value * 1.01 for n, value in compiled.items()}
    tied = choose({**made({"eager": 2.0}, seed=5), "compiled": compiled, "reduce-overhead": slower})
    assert tied is not None
    assert (tied.ship, tied.tied, tied.at_most) == ("compiled", ("reduce-overhead",), 1.0)


def test_what_is_tied_with_the_fastest_and_not_faster_than_eager_is_passed_over() -> None:
    eager = made({"eager": 1.0}, seed=5, scatter=0.0)["eager"]
    fastest = {n: value / 1.03 for n, value in eager.items()}
    between = {n: value / 1.015 * math.exp(0.03 * math.sin(2.5 * n)) for n, value in eager.items()}
    choice = choose({"eager": eager, "no_grad": between, "compiled": fastest})
    assert choice is not None
    assert (choice.ship, choice.tied) == ("compiled", ("no_grad",))


def test_only_rounds_that_every_mode_has_are_judged() -> None:
    seen = made({"eager": 2.0, "compiled": 1.0}, seed=6, count=12)
    partial = {n: value for n, value in seen["compiled"].items() if n > 4}
    assert choose({**seen, "compiled": partial}) is not None
    assert choose({**seen, "compiled": {n: v for n, v in partial.items() if n > 5}}) is None


@pytest.mark.parametrize(("ratio", "least"), [(1.05, 0.95), (1.3, 1.0)])
def test_a_real_difference_is_found_by_the_time_the_sweep_stops(ratio: float, least: float) -> None:
    words = words_when_stopped(ratio, range(200))
    assert words.count("faster") >= least * len(words)
    assert "slower" not in words


def test_modes_that_are_equal_are_told_apart_in_at_most_one_sweep_of_twenty() -> None:
    """The rate of false positives of all looks together, with 2,000 sweeps: 5 % and its own error."""
    words = words_when_stopped(1.0, range(2000), scatter=0.05)
    false = len(words) - words.count("no detectable difference")
    assert false / len(words) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 2000)


def test_uncorrected_looks_would_be_wrong_more_often_than_one_in_twenty() -> None:
    false = 0
    for seed in range(1000):
        seen = made({"a": 1.0, "b": 1.0}, seed, 24, scatter=0.05)
        false += any(
            compare(*({n: v for n, v in seen[mode].items() if n <= count} for mode in "ab")).word
            != "no detectable difference"
            for count in interim_checks(8, 24)
        )
    assert false / 1000 > 0.07


def test_two_percent_is_either_told_apart_or_called_equal_but_never_the_wrong_way() -> None:
    assert "slower" not in words_when_stopped(1.02, range(200))


def test_five_sweeps_of_one_machine_give_one_verdict_or_a_tie_that_contains_it() -> None:
    true = {"eager": 2.2, "no_grad": 1.6, "inference_mode": 1.5, "compiled": 1.05, "reduce-overhead": 1.0}
    for machine in range(20):
        ships = []
        for seed in range(5):
            count = stopped(true, 100 * machine + seed)
            choice = choose(made(true, 100 * machine + seed, count), confidence_of(CHECKS))
            assert choice is not None
            ships.append({choice.ship, choice.fastest, *choice.tied})
        assert sum("reduce-overhead" in ship for ship in ships) >= 4


def test_a_third_mode_near_two_equal_ones_keeps_the_sweep_going() -> None:
    flat = dict.fromkeys(range(1, 9), 1.0)
    third = {n: value * 1.025 * math.exp(0.05 * (-1) ** n) for n, value in flat.items()}
    assert decided({"compiled": flat, "reduce-overhead": flat})
    assert not decided({"no_grad": third, "compiled": flat, "reduce-overhead": flat})


def test_one_mode_alone_is_decided() -> None:
    assert decided({"eager": {1: 1.0}})


@given(st.integers(1, 40), st.integers(0, 40))
def test_looks_begin_at_the_least_and_end_at_the_most(least: int, more: int) -> None:
    planned = interim_checks(least, least + more)
    assert planned[0] == least
    assert planned[-1] == least + more
    assert list(planned) == sorted(set(planned))
    assert len(planned) <= CHECKS


def test_the_confidence_of_a_look_makes_up_for_the_other_looks() -> None:
    assert interim_checks(8, 24) == (8, 16, 24)
    assert interim_checks(8, 8) == (8,)
    assert confidence_of(1) == 0.95
    assert confidence_of(3) == pytest.approx(1 - 0.05 / 3)


@given(st.lists(rounds, min_size=2, max_size=5), st.randoms())
def test_the_order_in_which_rounds_are_given_does_not_matter(
    modes: list[dict[int, float]], random: Random
) -> None:
    named = dict(zip(LADDER, modes, strict=False))
    mixed = {mode: dict(random.sample(list(own.items()), len(own))) for mode, own in named.items()}
    assert choose(named) == choose(mixed)
    assert decided(named) == decided(mixed)


@given(st.lists(rounds, min_size=2, max_size=5))
def test_what_is_shipped_is_never_slower_than_eager_and_a_tie_is_between_the_two_themselves(
    modes: list[dict[int, float]],
) -> None:
    named = dict(zip(LADDER, modes, strict=False))
    shared = set.intersection(*map(set, named.values()))
    named = {mode: {n: v for n, v in own.items() if n in shared} for mode, own in named.items()}
    choice = choose(named)
    assert choice is not None
    assert choice.ship == "eager" or compare(named["eager"], named[choice.ship]).word == "faster"
    for mode in named:
        if mode != choice.fastest:
            between = compare(named[mode], named[choice.fastest])
            includes = not between.speedup.excludes_one or between.speedup.high <= EQUIVALENT
            assert (mode in choice.tied) == includes


@pytest.mark.parametrize(
    ("switches", "steps", "disturbed"),
    [(0, 0, False), (0, 100, False), (1, 20, False), (1, 19, True), (5, 100, False), (6, 100, True)],
)
def test_more_than_one_switch_per_twenty_steps_is_a_disturbance(
    switches: int, steps: int, disturbed: bool
) -> None:
    assert is_disturbed(switches, steps) == disturbed
