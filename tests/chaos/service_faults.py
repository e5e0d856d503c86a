"""Faults of the front, and signals and folders that a whole service is given."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import httpx
import psutil

from tests.chaos.fault import (
    ENDED_SECONDS,
    NOTICED_SECONDS,
    REPLACED_SECONDS,
    Experiment,
    Happened,
    seconds_until,
)
from tests.chaos.victim import BODY, PATIENCE_SECONDS, Victim, end, start, victim
from tests.support.processes import descendants, gone
from tests.support.serving import SECONDS_TO_END, until


def front_killed(stage: str) -> Experiment:
    """SIGKILL to the front at `stage`: nothing is left."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            service.at(stage)
            left = descendants(service.process.pid)
            service.process.kill()
            service.process.wait()
            seconds = seconds_until(lambda: all(map(gone, left)), "the end of its children")
            return Happened("nothing left", seconds, seconds <= ENDED_SECONDS)

    return run


def front_killed_importing(folder: Path) -> Happened:
    """SIGKILL to the front before it has a port: nothing is left, and nothing was started."""
    process = start(folder, subprocess.DEVNULL)
    until(lambda: psutil.Process(process.pid).cmdline()[1:3] == ["-m", "launchbound"], "the front's start")
    left = descendants(process.pid)
    began = monotonic()
    end(process, [])
    good = all(map(gone, left)) and not left
    return Happened(f"{len(left)} children", monotonic() - began, good)


def front_stopped(stage: str) -> Experiment:
    """SIGSTOP to the front, at the engine's `stage`, for longer than a hang takes to be noticed."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            pid = service.at(stage)
            service.process.send_signal(signal.SIGSTOP)
            threading.Event().wait(NOTICED_SECONDS + 3)
            service.process.send_signal(signal.SIGCONT)
            seconds = seconds_until(service.ready, "all modes ready")
            answered = service.generate().status_code == 200
            good = answered and service.engine() == pid and seconds <= REPLACED_SECONDS
            return Happened("the same engine answers" if good else "lost", seconds, good)

    return run


def terminated(stage: str, signals: int = 1, stopped: bool = False, requests: int = 0) -> Experiment:
    """SIGTERM to the front at `stage`, once or twice, with the engine `stopped` or not, with running
    `requests` or not: all ends.
    """

    def run(folder: Path) -> Happened:
        with victim(folder) as service, ThreadPoolExecutor(max(1, requests)) as pool:
            pid = service.at(stage)
            left = descendants(service.process.pid)
            asked = [pool.submit(_status, service) for _ in range(requests)]
            until(lambda: service.in_progress() == requests, "running requests")
            if stopped:
                os.kill(pid, signal.SIGSTOP)
            began = monotonic()
            for _ in range(signals):
                service.process.send_signal(signal.SIGTERM)
                threading.Event().wait(0.5 if signals > 1 else 0)
            code = service.process.wait(PATIENCE_SECONDS)
            seconds = monotonic() - began
            answers = sorted({one.result() for one in asked})
            clean = code == 0 and all(map(gone, left)) and set(answers) <= {200}
            most = 2.0 if signals > 1 else SECONDS_TO_END if requests else ENDED_SECONDS
            words = f"exit code {code}, {'nothing' if clean else 'something'} left"
            told = f", {requests} requests answered with {answers}" if requests else ""
            return Happened(words + told, seconds, clean and seconds <= most)

    return run


def _status(service: Victim) -> int:
    """What a long request is answered with; 0 where the connection broke."""
    body = {**BODY, "max_new_tokens": 100, "ignore_eos": True}
    with httpx.Client(base_url=service.url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
        try:
            return http.post("/v1/modes/eager/generate", json=body).status_code
        except httpx.TransportError:
            return 0


def cache_refused(prepare: Callable[[Path], None], remedy: str) -> Experiment:
    """A cache folder that `prepare` has spoilt: exit code 2, and the remedy in one line."""

    def run(folder: Path) -> Happened:
        prepare(folder / "cache")
        began = monotonic()
        process = start(folder)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        good = process.returncode == 2 and remedy in errors and "Traceback" not in errors
        return Happened(f"exit code {process.returncode}", monotonic() - began, good)

    return run


def writable_by_all(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
