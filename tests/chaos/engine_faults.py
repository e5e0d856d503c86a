"""Faults of the engine process."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import httpx

from tests.chaos.fault import (
    ANSWERED_SECONDS,
    NOTICED_SECONDS,
    REPLACED_SECONDS,
    Experiment,
    Happened,
    seconds_until,
)
from tests.chaos.victim import BODY, PATIENCE_SECONDS, Victim, victim
from tests.support.processes import gone
from tests.support.serving import until

TOGETHER = 4
LONG = {**BODY, "max_new_tokens": 400, "ignore_eos": True}


def _replaced(service: Victim, pid: int) -> bool:
    """Whether another engine than `pid` serves; looked at in this order, as the front sees a death later."""
    return service.engine() != pid and service.ready()


def engine_killed(stage: str) -> Experiment:
    """SIGKILL to the engine at `stage`: another one serves soon."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            pid = service.at(stage)
            os.kill(pid, signal.SIGKILL)
            seconds_until(lambda: gone(pid), "its end")
            seconds = seconds_until(lambda: _replaced(service, pid), "another engine")
            return Happened("ready again", seconds, seconds <= REPLACED_SECONDS)

    return run


def engine_stopped(stage: str) -> Experiment:
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


def engine_killed_with_requests(folder: Path) -> Happened:
    """Requests that run and wait when the engine dies are all answered with 503."""
    with victim(folder) as service:
        service.await_ready()
        with ThreadPoolExecutor(TOGETHER) as pool:
            asked = [pool.submit(_until_refused, service) for _ in range(TOGETHER)]
            until(lambda: service.in_progress() == TOGETHER, "requests that run and wait", PATIENCE_SECONDS)
            os.kill(service.engine(), signal.SIGKILL)
            began = monotonic()
            answers = [one.result() for one in asked]
        seconds = max(ended for _, ended in answers) - began
        statuses = sorted({status for status, _ in answers})
        words = f"{TOGETHER} requests answered with {', '.join(map(str, statuses))}"
        return Happened(words, seconds, statuses == [503] and seconds <= ANSWERED_SECONDS)


def _until_refused(service: Victim) -> tuple[int, float]:
    """The first status that is not 200 of long requests one after the other, and when it came."""
    with httpx.Client(base_url=service.url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
        while (answer := http.post("/v1/modes/eager/generate", json=LONG)).status_code == 200:
            continue
        return answer.status_code, monotonic()
