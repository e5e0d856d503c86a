"""Faults of the front, and signals and folders that a whole service is given."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from tests.chaos.fault import ENDED_SECONDS, NOTICED_SECONDS, Happened, seconds_until
from tests.chaos.victim import PATIENCE_SECONDS, start, victim
from tests.support.processes import descendants, gone


def front_killed(stage: str) -> Callable[[Path], Happened]:
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


def front_stopped(folder: Path) -> Happened:
    """SIGSTOP to the front for longer than a hang takes to be noticed: the same engine serves on."""
    with victim(folder) as service:
        service.await_ready()
        pid = service.engine()
        service.process.send_signal(signal.SIGSTOP)
        threading.Event().wait(NOTICED_SECONDS + 3)
        service.process.send_signal(signal.SIGCONT)
        began = monotonic()
        answered = service.generate().status_code == 200
        good = answered and service.engine() == pid
        return Happened("the same engine answers" if good else "lost", monotonic() - began, good)


def terminated(stage: str, signals: int, stopped: bool) -> Callable[[Path], Happened]:
    """SIGTERM to the front at `stage`, once or twice, with the engine `stopped` or not: all ends."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            pid = service.at(stage)
            left = descendants(service.process.pid)
            if stopped:
                os.kill(pid, signal.SIGSTOP)
            began = monotonic()
            for _ in range(signals):
                service.process.send_signal(signal.SIGTERM)
                threading.Event().wait(0.5 if signals > 1 else 0)
            code = service.process.wait(PATIENCE_SECONDS)
            seconds = monotonic() - began
            clean = code == 0 and all(map(gone, left))
            most = ENDED_SECONDS if signals == 1 else 2.0
            return Happened(
                f"exit code {code}, {'nothing' if clean else 'something'} left",
                seconds,
                clean and seconds <= most,
            )

    return run


def cache_refused(prepare: Callable[[Path], None], remedy: str) -> Callable[[Path], Happened]:
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
