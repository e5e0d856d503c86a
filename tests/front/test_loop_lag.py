"""The loop's lag is how much later than its time a timer was reached."""

from __future__ import annotations

import asyncio

import pytest

from service.front import app
from service.front.app import LAG_INTERVAL_SECONDS, LoopLag
from service.statistics.disturbance import is_disturbed
from tests.support.serving import Front, until


def test_the_lag_is_the_time_beyond_the_interval_and_never_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 100.0 + LAG_INTERVAL_SECONDS + 0.3, 101.0, 101.0 + LAG_INTERVAL_SECONDS / 2, 102.0])
    monkeypatch.setattr(app, "monotonic", lambda: next(times))
    lags: list[float] = []

    async def read_twice() -> None:
        lag = LoopLag(lags.append)
        lag.start()
        while len(lags) < 2:
            await asyncio.sleep(0)
        lag.stop()

    asyncio.run(read_twice())
    assert lags == [pytest.approx(0.3), 0.0]


def test_readings_on_the_engines_own_core_disturb_no_step_of_up_to_10_ms() -> None:
    readings_per_second, steps_per_second = 1 / LAG_INTERVAL_SECONDS, 100
    assert not is_disturbed(readings_per_second, steps_per_second)


def test_a_running_front_exports_its_lag(front: Front) -> None:
    before = front.series()["event_loop_lag_seconds_count"]
    until(lambda: front.series()["event_loop_lag_seconds_count"] > before, "another reading")
