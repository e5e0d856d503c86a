"""Interleaved rounds and the ratio of two arms."""

from __future__ import annotations

from random import Random

import pytest

from service.measure.rounds import in_rounds, paired_median_ratio


def test_a_disturbed_round_does_not_widen_a_median_ratio() -> None:
    quiet = [1.0 + number / 1000 for number in range(20)]
    disturbed = [2.0 * value for value in quiet]
    disturbed[7] = 90.0
    ratio = paired_median_ratio(disturbed, quiet)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_every_arm_runs_once_per_round_and_the_order_depends_on_the_seed_alone() -> None:
    def orders(seed: str) -> list[str]:
        ran: list[str] = []

        def arm(name: str) -> float:
            ran.append(name)
            return float(len(ran))

        found = in_rounds({name: lambda n=name: arm(n) for name in "abcd"}, 5, seed, lambda text: None)
        assert all(len(values) == 5 for values in found.values())
        assert all(sorted(ran[at : at + 4]) == list("abcd") for at in range(0, 20, 4))
        return ran

    assert orders("one") == orders("one") != orders("two")


def test_arms_return_anything_and_every_round_is_logged() -> None:
    lines: list[str] = []
    found = in_rounds({"left": lambda: ("a", 1), "right": lambda: ("b", 2)}, 2, "seed", lines.append)
    assert found == {"left": [("a", 1)] * 2, "right": [("b", 2)] * 2}
    assert lines == ["round 1 of 2", "round 2 of 2"]


@pytest.mark.parametrize(("seed", "prefix"), [("floor", "floor/"), (None, None)])
def test_the_order_of_a_round_is_that_of_its_documented_generator(
    seed: str | None, prefix: str | None
) -> None:
    ran: list[str] = []
    in_rounds({name: lambda n=name: ran.append(n) for name in "abcde"}, 3, seed)
    expected: list[str] = []
    for number in range(3):
        keys = list("abcde")
        Random(number if prefix is None else f"{prefix}{number}").shuffle(keys)
        expected += keys
    assert ran == expected
