"""Dispatch floors: the median of samples, and what lies between two calibrated batches."""

from __future__ import annotations

import pytest

from service.protocol.status import Floor
from service.step.floors import calibrated_floor, dispatch_share, interpolated_floor

SMALL = Floor(batch=1, seconds=1.0, low=0.5, high=2.0, samples=21, source="calibrated")
LARGE = Floor(batch=5, seconds=3.0, low=2.5, high=6.0, samples=40, source="calibrated")


def test_between_two_batches_the_floor_and_its_interval_are_linear_in_the_batch() -> None:
    between = interpolated_floor(SMALL, LARGE, 2)
    assert between == Floor(batch=2, seconds=1.5, low=1.0, high=3.0, samples=21, source="interpolated")


def test_at_a_calibrated_batch_the_floor_is_that_one_itself() -> None:
    assert interpolated_floor(SMALL, LARGE, 1) is SMALL
    assert interpolated_floor(SMALL, LARGE, 5) is LARGE
    assert interpolated_floor(SMALL, SMALL, 1) is SMALL


def test_a_calibrated_floor_is_the_median_with_its_interval() -> None:
    floor = calibrated_floor(4, [3.0, 1.0, 2.0, 5.0, 4.0, 7.0, 6.0])
    assert (floor.batch, floor.seconds, floor.low, floor.high, floor.samples) == (4, 4.0, 1.0, 7.0, 7)
    assert floor.source == "calibrated"


@pytest.mark.parametrize(("wall_seconds", "share"), [(10.0, 6.0), (5.0, 5.0)])
def test_dispatch_is_the_floors_of_all_steps_and_no_more_than_their_wall_time(
    wall_seconds: float, share: float
) -> None:
    assert dispatch_share(2.0, 3, wall_seconds) == share
