"""Which requests are profiled unasked: none on a CPU, a small share on CUDA, exactly as many as were set."""

from __future__ import annotations

import pytest

from service.engine.profiler import DEFAULT_EVERY, MOST_SHARE, ProfileSchedule


def due(schedule: ProfileSchedule, requests: int) -> list[int]:
    """The numbers, from 1, of the requests that are due."""
    return [number for number in range(1, requests + 1) if schedule.is_due()]


@pytest.mark.parametrize(
    ("every", "cuda", "expected"),
    [
        (None, False, []),
        (None, True, [DEFAULT_EVERY, 2 * DEFAULT_EVERY]),
        (0, True, []),
        (150, False, [150, 300, 450]),
        (150, True, [150, 300, 450]),
    ],
)
def test_one_request_in_so_many_is_due(every: int | None, cuda: bool, expected: list[int]) -> None:
    assert due(ProfileSchedule(every, cuda, lambda: 0), 2 * DEFAULT_EVERY + 50) == expected


def test_by_default_profiling_takes_no_more_than_its_share_of_the_time() -> None:
    now = 0
    schedule = ProfileSchedule(None, True, lambda: now)
    assert due(schedule, DEFAULT_EVERY) == [DEFAULT_EVERY]
    schedule.took(0.25)
    now = round(0.25 / MOST_SHARE * 1e9) - 1
    assert due(schedule, DEFAULT_EVERY) == []
    now += 1
    assert due(schedule, DEFAULT_EVERY) == [DEFAULT_EVERY]


def test_a_share_that_was_set_is_kept_whatever_it_costs() -> None:
    schedule = ProfileSchedule(2, True, lambda: 0)
    schedule.took(100.0)
    assert due(schedule, 4) == [2, 4]
