"""Faults of the engine process."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import httpx
import psutil

from tests.chaos.fault import (
    ANSWERED_SECONDS,
    NOTICED_SECONDS,
    REPLACED_SECONDS,
    Happened,
    seconds_until,
)
from tests.chaos.victim import PATIENCE_SECONDS, Victim, victim
from tests.support.processes import gone
from tests.support.serving import until


def _replaced(service: Victim, pid: int) -> bool:
    """Whether another engine than `pid` serves; looked at in this order, as the front sees a death later."""
    return service.engine() != pid and service.ready()


def engine_killed(stage: str) -> Callable[[Path], Happened]:
    """SIGKILL to the engine at `stage`: another one serves soon."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            pid = service.at(stage)
            os.kill(pid, signal.SIGKILL)
            seconds_until(lambda: gone(pid), "its end")
            seconds = seconds_until(lambda: _replaced(service, pid), "another engine")
            return Happened("ready again", seconds, seconds <= REPLACED_SECONDS)

    return run


def engine_stopped(stage: str) -> Callable[[Path], Happened]:
    """SIGSTOP to the engine at `stage`: it is noticed and replaced."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            pid = service.at(stage)
            os.kill(pid, signal.SIGSTOP)
            noticed = seconds_until(lambda: gone(pid), "its replacement")
            again = seconds_until(lambda: _replaced(service, pid), "another engine")
            good = noticed <= NOTICED_SECONDS and again <= REPLACED_SECONDS
            return Happened(f"noticed, and ready again after {again:.1f} s more", noticed, good)

    return run


def engine_killed_with_a_request(folder: Path) -> Happened:
    """A request that runs when the engine dies is answered with 503."""
    with victim(folder) as service:
        service.await_ready()
        answers: list[httpx.Response] = []
        long = {"max_new_tokens": 400, "ignore_eos": True, "prompts": ["x"]}

        def ask() -> None:
            while not answers:
                answer = service.generate(**long)
                if answer.status_code != 200:
                    answers.append(answer)

        asking = threading.Thread(target=ask)
        asking.start()
        page = 'launchbound_requests_in_progress{mode="eager"} 1.0'
        until(lambda: page in service.http.get("/metrics").text, "a running request")
        os.kill(service.engine(), signal.SIGKILL)
        began = monotonic()
        asking.join(PATIENCE_SECONDS)
        seconds = monotonic() - began
        status = answers[0].status_code if answers else None
        return Happened(f"answered with {status}", seconds, status == 503 and seconds <= ANSWERED_SECONDS)


def disk_full(folder: Path) -> Happened:
    """No file of the engine may grow over a kilobyte: a profiled request is answered all the same.

    Played by RLIMIT_FSIZE, which needs no privilege; a write fails with EFBIG instead of ENOSPC.
    """
    with victim(folder) as service:
        service.await_ready()
        engine = psutil.Process(service.engine())
        _, hard = engine.rlimit(resource.RLIMIT_FSIZE)
        engine.rlimit(resource.RLIMIT_FSIZE, (1024, hard))
        began = monotonic()
        answers = [service.generate(profile=True).status_code, service.generate().status_code]
        good = answers == [200, 200] and service.engine() == engine.pid
        return Happened(f"answered with {answers}", monotonic() - began, good)


def anatomy_hit(number: signal.Signals) -> Callable[[Path], Happened]:
    """Signal `number` to the anatomy process in a probe: that is answered with 503, and the engine serves."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            service.await_ready()
            answers: list[int] = []

            def ask() -> None:
                answers.append(service.http.post("/v1/probes/hidden-copy", json={}).status_code)

            asking = threading.Thread(target=ask)
            asking.start()
            pid = service.anatomy()
            until(
                lambda: service.live().get("anatomy") not in (None, "starting"), "the study", PATIENCE_SECONDS
            )
            os.kill(pid, number)
            began = monotonic()
            asking.join(PATIENCE_SECONDS)
            seconds = monotonic() - began
            served = service.generate().status_code
            good = (answers, served) == ([503], 200) and seconds <= NOTICED_SECONDS and gone(pid)
            return Happened(f"study answered with {answers}, then a request with {served}", seconds, good)

    return run
