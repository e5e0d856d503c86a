"""When floors are taken: settled, on request, and one at a time in quiet moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns

from service.engine.mode_floors import ModeFloors
from service.protocol.messages import Calibrate, Calibrated

QUIET_SECONDS = 10.0
"""Without a job for this long the engine may refresh its floors: in a sweep, requests would wait for it."""

FRESH_SECONDS = 60.0
"""Floors this young, with nothing served since, are not taken anew: a sweep's first follow on warm-up's."""

CALIBRATION_SHARE = 0.01
"""At most this share of the engine's time goes into refreshing floors."""


class FloorKeeper:
    """The floors of one engine life, after its warm-up."""

    def __init__(self, floors: ModeFloors, refresh: Callable[[Callable[[], bool]], float]) -> None:
        self._floors = floors
        self._refresh = refresh
        self._served_ns = self._refreshed_ns = perf_counter_ns()
        self._taken_ns = 0
        self._refresh_seconds = 0.0

    def take(self) -> Iterator[None]:
        """Take all floors anew, by both witnesses; yields where other work does no harm."""
        yield from self._floors.recalibrate()
        self._taken_ns = perf_counter_ns()

    def served(self) -> None:
        """A job has run."""
        self._served_ns = perf_counter_ns()

    def answer(self, request: Calibrate) -> Calibrated:
        """All floors with their samples: taken anew, unless nothing has run since they last were."""
        fresh = self._taken_ns > self._served_ns and _seconds_since(self._taken_ns) < FRESH_SECONDS
        if not fresh:
            for _ in self.take():
                # Requests wait: these floors are for a measurement that wants them of a quiet machine.
                continue
        return Calibrated(id=request.id, floors=self._floors.samples())

    def refresh_one(self, interrupted: Callable[[], bool]) -> bool:
        """In a quiet time, and where the budget allows, sample one twin; returns whether it did.

        So that floors follow the machine. Given up once `interrupted` is true.
        """
        budget_seconds = _seconds_since(self._refreshed_ns) * CALIBRATION_SHARE
        if _seconds_since(self._served_ns) < QUIET_SECONDS or self._refresh_seconds > budget_seconds:
            return False
        self._refreshed_ns = perf_counter_ns()
        self._refresh_seconds = self._refresh(interrupted)
        self._floors.announce_round()
        return True


def _seconds_since(instant_ns: int) -> float:
    return (perf_counter_ns() - instant_ns) / 1e9
