"""Faults of the anatomy process at each of its stages, and of the others while it is at a study."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

import httpx

from tests.chaos.fault import (
    ENDED_SECONDS,
    NOTICED_SECONDS,
    REPLACED_SECONDS,
    Experiment,
    Happened,
    seconds_until,
)
from tests.chaos.victim import PATIENCE_SECONDS, Victim, victim
from tests.support.processes import descendants, gone
from tests.support.serving import until

PROBE = "/v1/probes/hidden-copy"


class Asked:
    """A study that is asked for in a thread of its own; `statuses` has what it was answered with."""

    def __init__(self, service: Victim) -> None:
        self.statuses: list[int] = []
        self._service = service
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        with suppress(httpx.TransportError):  # where the front is ended, no answer comes
            self.statuses.append(self._service.http.post(PROBE, json={}).status_code)

    def wait(self) -> list[int]:
        """What it was answered with: one status, or none where the connection broke."""
        self._thread.join(PATIENCE_SECONDS)
        return self.statuses


def importing(service: Victim) -> Asked:
    """A study is asked for, and its process imports and loads."""
    asked = Asked(service)
    service.anatomy()
    return asked


def studying(service: Victim) -> Asked:
    """A study is asked for and under way."""
    asked = importing(service)
    until(lambda: service.live().get("anatomy") not in (None, "starting"), "the study", PATIENCE_SECONDS)
    return asked


def anatomy_hit(number: signal.Signals, begin: Callable[[Victim], Asked]) -> Experiment:
    """Signal `number` to the anatomy process in a study: that is answered with 503, and the engine serves."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            service.await_ready()
            asked = begin(service)
            pid = service.anatomy()
            os.kill(pid, number)
            began = monotonic()
            answers = asked.wait()
            seconds = monotonic() - began
            served = service.generate().status_code
            good = (answers, served) == ([503], 200) and seconds <= NOTICED_SECONDS and gone(pid)
            return Happened(f"study answered with {answers}, then a request with {served}", seconds, good)

    return run


def anatomy_hit_at_rest(number: signal.Signals) -> Experiment:
    """Signal `number` between two studies: it is gone soon, and the next study has another process."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            service.await_ready()
            first = Asked(service).wait()
            pid = service.anatomy()
            os.kill(pid, number)
            seconds = seconds_until(lambda: gone(pid), "its end")
            second = Asked(service).wait()
            good = first == second == [200] and seconds <= NOTICED_SECONDS
            return Happened(f"studies before and after: {first}, {second}", seconds, good)

    return run


def engine_hit_in_study(number: signal.Signals) -> Experiment:
    """Signal `number` to the engine, which pauses for a study: the study ends, another engine serves."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            service.await_ready()
            asked = studying(service)
            pid = service.engine()
            os.kill(pid, number)
            noticed = seconds_until(lambda: gone(pid), "its end")
            answers = asked.wait()
            again = seconds_until(lambda: service.engine() != pid and service.ready(), "another engine")
            good = answers in ([503], [200]) and noticed <= NOTICED_SECONDS and again <= REPLACED_SECONDS
            words = f"gone after {noticed:.1f} s, study answered with {answers}, ready again"
            return Happened(words, noticed + again, good)

    return run


def front_killed_in_study(folder: Path) -> Happened:
    """SIGKILL to the front while a study runs: nothing is left."""
    with victim(folder) as service:
        service.await_ready()
        asked = studying(service)
        left = descendants(service.process.pid)
        service.process.kill()
        service.process.wait()
        seconds = seconds_until(lambda: all(map(gone, left)), "the end of its children")
        asked.wait()
        return Happened(f"{len(left)} children, none left", seconds, seconds <= ENDED_SECONDS)


def front_stopped_in_study(folder: Path) -> Happened:
    """SIGSTOP to the front for longer than a pause is leased: the engine is the same, and studies go on."""
    with victim(folder) as service:
        service.await_ready()
        engine, asked = service.engine(), studying(service)
        service.process.send_signal(signal.SIGSTOP)
        threading.Event().wait(NOTICED_SECONDS + 3)
        service.process.send_signal(signal.SIGCONT)
        began = monotonic()
        first = asked.wait()
        served = service.generate().status_code
        seconds = monotonic() - began
        second = Asked(service).wait()
        good = first in ([200], [503]) and (served, second) == (200, [200]) and service.engine() == engine
        return Happened(f"study {first}, then a request {served}, a study {second}", seconds, good)


def terminated_in_study(folder: Path) -> Happened:
    """SIGTERM while a study runs: all ends in time, and nothing is left."""
    with victim(folder) as service:
        service.await_ready()
        asked = studying(service)
        left = descendants(service.process.pid)
        service.process.send_signal(signal.SIGTERM)
        began = monotonic()
        code = service.process.wait(PATIENCE_SECONDS)
        seconds = monotonic() - began
        answers = asked.wait()
        clean = code == 0 and all(map(gone, left))
        words = f"exit code {code}, study answered with {answers}, {'nothing' if clean else 'something'} left"
        return Happened(words, seconds, clean and seconds <= ENDED_SECONDS)
