"""Front and engine share no core where there are enough, by one rule."""

from __future__ import annotations

import pytest

from service.protocol.placement import engine_cpus, front_cpus


@pytest.mark.parametrize("cores", [[0, 1], [0, 1, 2], [4, 5, 6, 7], list(range(16))])
def test_front_and_engine_divide_the_cores(cores: list[int]) -> None:
    engine = engine_cpus(None, cores)
    assert engine == cores[len(cores) // 2 :]
    assert front_cpus(None, None, cores) == cores[: len(cores) // 2]


def test_the_front_keeps_off_cores_that_are_set_for_the_engine() -> None:
    assert front_cpus(None, [0, 2], [0, 1, 2, 3]) == [1, 3]


def test_cores_set_for_the_front_are_taken_as_they_are() -> None:
    assert front_cpus([1], [1], [0, 1]) == [1]


def test_where_the_engine_takes_all_cores_the_front_shares_them() -> None:
    assert front_cpus(None, None, [3]) == [3]
    assert front_cpus(None, [0, 1], [0, 1]) == [0, 1]
