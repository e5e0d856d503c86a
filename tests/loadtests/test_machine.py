"""What the machine does to a round: steal time, the canary, and the rounds that they mark."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from loadtests.run import machine
from loadtests.run.machine import Canary, CpuTimes, cpu_times, marked_rounds, steal_share, weights_bytes
from loadtests.run.run_file import RoundMachine
from tests.support.fake_service import engine_status

STAT = "cpu  100 5 20 800 10 1 4 60 7 0\ncpu0 50 2 10 400 5 0 2 30 3 0\n"


def made(number: int, steal: float | None = 0.0, rate: float | None = 10e9) -> RoundMachine:
    return RoundMachine(round=number, steal_share=steal, canary_bytes_per_second=rate)


def test_steal_is_the_eighth_column_and_guests_are_not_counted_twice(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_text(STAT)
    assert cpu_times(path) == CpuTimes(total=1000, steal=60)


@pytest.mark.parametrize("content", ["", "cpu 1 2 3\n", "btime 12345 1 1 1 1 1 1 1 1\n"])
def test_without_steal_time_there_is_no_share(tmp_path: Path, content: str) -> None:
    path = tmp_path / "stat"
    path.write_text(content)
    assert cpu_times(path) is None
    assert cpu_times(tmp_path / "missing") is None
    assert steal_share(None, CpuTimes(1, 0)) is None
    assert steal_share(CpuTimes(1, 0), CpuTimes(1, 0)) is None


def test_the_share_is_of_the_time_between_two_readings() -> None:
    assert steal_share(CpuTimes(1000, 60), CpuTimes(1200, 70)) == pytest.approx(0.05)


def test_the_canary_reads_at_least_once_and_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(machine, "perf_counter", lambda: float(next(ticks)))
    assert Canary(8000).bytes_per_second() == 8000.0
    assert next(ticks) == 2
    monkeypatch.setattr(machine, "perf_counter", iter([0.0, 0.02, 0.03, 0.06]).__next__)
    assert Canary(8000).bytes_per_second() == pytest.approx(8000 / 0.02)


def test_without_a_known_size_there_is_no_canary() -> None:
    assert Canary(0).bytes_per_second() is None


def test_the_canary_is_as_large_as_the_weights() -> None:
    assert weights_bytes(engine_status()) == 2_900_000 * 4
    assert weights_bytes(engine_status() | {"dtype": "bfloat16"}) == 2_900_000 * 2
    assert weights_bytes(engine_status() | {"dtype": "autocast-bfloat16"}) == 2_900_000 * 4
    assert weights_bytes({}) == weights_bytes({"parameters": 5, "dtype": "int3"}) == 0


def test_a_round_with_steal_time_or_a_canary_that_jumps_is_marked_with_its_reason() -> None:
    random = Random(3)
    rounds = [made(n, 0.001, 10e9 * random.uniform(0.93, 1.07)) for n in range(1, 9)]
    assert marked_rounds(rounds) == []
    rounds[2] = made(3, 0.08, 10e9)
    rounds[5] = made(6, 0.0, 4e9)
    rounds[6] = made(7, 0.03, 15e9)
    marked = {one.round: one.reason for one in marked_rounds(rounds)}
    assert marked.keys() == {3, 6, 7}
    assert marked[3] == "steal time 8.0%"
    assert "4.0 GB/s" in marked[6]
    assert "steal" in marked[7]
    assert "15.0 GB/s" in marked[7]


def test_the_order_of_rounds_marks_no_other_ones() -> None:
    rounds = [made(n, rate=rate) for n, rate in enumerate((10e9, 11e9, 4e9, 10e9, 9e9), 1)]
    forward = {one.round for one in marked_rounds(rounds)}
    assert forward == {one.round for one in marked_rounds(rounds[::-1])} == {3}


def test_what_cannot_be_read_marks_nothing() -> None:
    assert marked_rounds([made(n, None, None) for n in range(1, 9)]) == []
    assert marked_rounds([]) == []
