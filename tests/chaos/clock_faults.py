"""The wall clock of a service jumps: deadlines, rates and timings use other clocks (see clock_shift.cpp)."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import monotonic, time

from tests.chaos.victim import Happened, NotPossible, Setup, Victim, victim
from tests.support.serving import until

SOURCE = Path(__file__).with_name("clock_shift.cpp")
SECOND_NS = 1_000_000_000


class SteppedClock:
    """The clock of what is started with `environment`; built in `folder`."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("g++") is None:
            raise NotPossible("no stepped clock here: g++ is missing")
        library, self._file = folder / "clock_shift.so", folder / "clock_shift"
        subprocess.run(
            ["g++", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True
        )
        self.set_ahead(0)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFT_FILE": str(self._file)}

    def set_ahead(self, seconds: int) -> None:
        """From now on it is `seconds` ahead of the machine's; negative: behind."""
        shift = (seconds * SECOND_NS).to_bytes(8, "little", signed=True)
        if self._file.exists():
            with self._file.open("r+b", buffering=0) as file:
                file.write(shift)
        else:
            self._file.write_bytes(shift)


HOUR, DAY = 3600, 86_400
STEPS = (HOUR, -HOUR, 365 * DAY, -365 * DAY, 0)
"""Seconds ahead of the machine's clock, one after the other."""

DEADLINE_SECONDS = 5.0
GRACE_SECONDS = 3.0
"""Within which the answer of a deadline that has passed is here: the front waits for one of them itself."""

REQUESTS, TOGETHER = 4, 16
LONG = {"max_new_tokens": 480, "ignore_eos": True}
ACROSS = {"max_new_tokens": 120, "ignore_eos": True}
PARTS = ("queue", "dispatch", "kernel", "other")
DURATIONS, LAGS = 'request_duration_seconds_sum{mode="eager"}', "event_loop_lag_seconds_sum"
ENDED_WELL = 'requests_total{mode="eager",outcome="ok"}'
PROFILED = 'profiled_requests_total{mode="eager"}'


@dataclass(frozen=True, slots=True)
class Asked:
    """One request by the clock of the one who asks, which is not stepped."""

    status: int
    seconds: float
    timings: dict[str, float]


def settings(clock: SteppedClock) -> Setup:
    """A service on that clock, with a deadline that several long requests at once exceed."""
    return Setup(
        environment={**clock.environment, "LAUNCHBOUND_REQUEST_TIMEOUT_SECONDS": str(DEADLINE_SECONDS)}
    )


def clock_stepped(folder: Path) -> Happened:
    """The clock jumps an hour and a year, forwards and backwards."""
    clock = SteppedClock(folder)
    with victim(folder, settings(clock)) as service:
        service.await_warm()
        began, wrong = monotonic(), list[str]()
        for ahead in STEPS:
            found = [*amiss_after(service, clock, ahead), *deadlines_amiss(service, clock, ahead)]
            wrong += [f"{ahead:+d} s: {what}" for what in found]
        words = "; ".join(wrong) or f"{len(STEPS)} steps of up to a year each way: all held"
        return Happened(words, monotonic() - began, not wrong, {"steps": len(STEPS)})


def amiss_after(service: Victim, clock: SteppedClock, ahead: int) -> Iterator[str]:
    """What does not hold of timings and metrics where the clock is set while a request runs."""
    engine, before, began = service.engine(), service.series(), monotonic()
    with ThreadPoolExecutor(1) as pool:
        across = pool.submit(ask, service, **ACROSS)
        until(service.in_progress, "a running request")
        clock.set_ahead(ahead)
        asked = [across.result()]
    asked += [ask(service, profile=number == 0) for number in range(REQUESTS)]
    for one in asked:
        yield from _amiss_of(one)
    yield from _amiss_of_metrics(before, service.series(), monotonic() - began, len(asked))
    if service.engine() != engine or not service.ready():
        yield "the engine was replaced, or is not ready"
    yield from _not_stepped(service, ahead)


def deadlines_amiss(service: Victim, clock: SteppedClock, ahead: int) -> Iterator[str]:
    """What does not hold of deadlines where the clock goes there and back while requests run and wait."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        together = [pool.submit(ask, service, **LONG) for _ in range(TOGETHER)]
        until(lambda: service.in_progress() == TOGETHER, "requests that run and wait")
        clock.set_ahead(-ahead)
        late = [one.result() for one in together]
    clock.set_ahead(ahead)
    timeouts = [one for one in late if one.status == 504]
    if not timeouts or {one.status for one in late} - {200, 504}:
        yield f"{TOGETHER} long requests at once: {sorted(one.status for one in late)}"
    most = DEADLINE_SECONDS + GRACE_SECONDS
    early = any(one.seconds < DEADLINE_SECONDS for one in timeouts)
    if early or any(one.seconds > most for one in late):
        yield f"a deadline of {DEADLINE_SECONDS:g} s after {[round(one.seconds, 2) for one in late]} s"


def ask(service: Victim, **body: object) -> Asked:
    """One request."""
    began = monotonic()
    answer = service.generate(**body)
    seconds = monotonic() - began
    return Asked(answer.status_code, seconds, answer.json().get("timings", {}))


def _amiss_of(one: Asked) -> Iterator[str]:
    if one.status != 200:
        yield f"a short request answered with {one.status}"
        return
    parts = [one.timings[f"{part}_seconds"] for part in PARTS]
    total = one.timings["total_seconds"]
    if min(parts) < 0 or not math.isclose(sum(parts), total) or not 0 < total <= one.seconds:
        yield f"parts {parts}, total {total} s, {one.seconds} s for who asked"


def _amiss_of_metrics(
    before: dict[str, float], after: dict[str, float], elapsed: float, sent: int
) -> Iterator[str]:
    """Sums of seconds grow by no more than passed for who asked, one request at a time; counts by all."""
    for name in (DURATIONS, LAGS):
        grown = after[name] - before[name]
        if not 0 <= grown <= elapsed:
            yield f"{name} grew by {grown:.1f} in {elapsed:.1f} s"
    for name, most in ((ENDED_WELL, sent), (PROFILED, 1)):
        if after[name] - before[name] < most:
            yield f"{name} grew by {after[name] - before[name]:g} instead of {most}"


def _not_stepped(service: Victim, ahead: int) -> Iterator[str]:
    """Where front or engine still has another time of day, the step was none."""

    def of_the_front() -> float:
        answer = service.http.get("/health/live")
        return parsedate_to_datetime(answer.headers["date"]).timestamp()

    until(lambda: abs(of_the_front() - time() - ahead) < 30, "the front's new time of day")
    newest = max(float(trace["created"]) for trace in service.http.get("/v1/traces").json()["traces"])
    if ahead >= HOUR and abs(newest - time() - ahead) > 60:
        yield "the engine's time of day was not stepped"
