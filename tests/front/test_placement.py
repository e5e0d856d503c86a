"""Front and engine share no core where there are enough, by one rule."""

from __future__ import annotations

import pytest

from service import machine
from service.machine import engine_cpus, front_cpus, physical_cores, share_cpus

NEIGHBOURS = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3), 4: (4, 5), 5: (4, 5), 6: (6, 7), 7: (6, 7)}
APART = {cpu: (cpu % 4, cpu % 4 + 4) for cpu in range(8)}


@pytest.fixture(autouse=True)
def one_thread_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "siblings", lambda cpu: (cpu,))


@pytest.mark.parametrize(
    ("topology", "cores", "front", "engine"),
    [
        (NEIGHBOURS, list(range(8)), [0, 1, 2, 3], [4, 5, 6, 7]),
        (APART, list(range(8)), [0, 1, 4, 5], [2, 3, 6, 7]),
        (NEIGHBOURS, [0, 1, 2, 3], [0, 1], [2, 3]),
        (NEIGHBOURS, [0, 1, 2], [0, 1], [2]),
        (NEIGHBOURS, [0, 1], [0], [1]),
    ],
)
def test_the_hardware_threads_of_a_core_are_on_the_same_side_where_there_is_another_core(
    monkeypatch: pytest.MonkeyPatch,
    topology: dict[int, tuple[int, ...]],
    cores: list[int],
    front: list[int],
    engine: list[int],
) -> None:
    monkeypatch.setattr(machine, "siblings", topology.__getitem__)
    assert front_cpus(None, None, cores) == front
    assert engine_cpus(None, cores) == engine
    assert share_cpus("lower", cores) == front


def test_hardware_threads_of_one_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert physical_cores([0, 1, 2]) == 3
    monkeypatch.setattr(machine, "siblings", APART.__getitem__)
    assert physical_cores([0, 1, 4, 5]) == 2


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


@pytest.mark.parametrize("cores", [[0, 1], [0, 1, 2], [4, 5, 6, 7], list(range(16))])
def test_the_engines_of_two_services_share_no_core_where_the_second_has_the_lower_half(
    cores: list[int],
) -> None:
    lower = share_cpus("lower", cores)
    second = engine_cpus(None, lower)
    assert second
    assert not set(second) & set(engine_cpus(None, share_cpus("all", cores)))
    assert set(front_cpus(None, None, lower)) <= set(lower)
    assert len(cores) < 4 or not set(front_cpus(None, None, lower)) & set(second)


def test_a_single_core_is_shared_by_all() -> None:
    assert share_cpus("lower", [3]) == share_cpus("all", [3]) == [3]
