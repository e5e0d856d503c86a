"""Faults of the engine, the front and the anatomy process at each of their stages, and of a whole service."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic

import httpx
import psutil

from tests.chaos.victim import (
    ANSWERED_SECONDS,
    BODY,
    ENDED_SECONDS,
    NOTICED_SECONDS,
    PATIENCE_SECONDS,
    REPLACED_SECONDS,
    Experiment,
    Happened,
    Victim,
    end,
    seconds_until,
    start,
    victim,
)
from tests.support.processes import descendants, gone
from tests.support.serving import SECONDS_TO_END, until

TOGETHER = 4
LONG = {**BODY, "max_new_tokens": 400, "ignore_eos": True}
PROBE = "/v1/probes/hidden-copy"


class Study:
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
        self._thread.join(PATIENCE_SECONDS)
        return self.statuses


Moment = Callable[[Victim], Study | None]
"""Waits until a service is where it is to be hit; returns the study that it is at then."""


def at(stage: str) -> Moment:
    def wait(service: Victim) -> None:
        service.at(stage)

    return wait


def importing(service: Victim) -> Study:
    service.await_ready()
    asked = Study(service)
    service.anatomy()
    return asked


def studying(service: Victim) -> Study:
    asked = importing(service)
    until(lambda: service.live().get("anatomy") not in (None, "starting"), "the study", PATIENCE_SECONDS)
    return asked


def answers_of(asked: Study | None) -> list[int]:
    return [] if asked is None else asked.wait()


def engine_hit(number: signal.Signals, moment: Moment) -> Experiment:
    """Signal `number` to the engine: it is gone soon, and another one serves."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            asked, pid = moment(service), service.engine()
            os.kill(pid, number)
            noticed = seconds_until(lambda: gone(pid), "its end")
            # In this order, as the front sees a death later.
            again = seconds_until(lambda: service.engine() != pid and service.ready(), "another engine")
            answers = answers_of(asked)
            good = noticed <= NOTICED_SECONDS and again <= REPLACED_SECONDS
            study = f", study answered with {answers}" if asked else ""
            words = f"gone after {noticed:.1f} s{study}, ready again after {again:.1f} s more"
            return Happened(words, noticed + again, good and answers in ([], [503], [200]))

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
    while (status := _status(service, LONG)) == 200:
        continue
    return status, monotonic()


def _status(service: Victim, body: dict[str, object]) -> int:
    """What a request is answered with on a connection of its own; 0 where that broke."""
    try:
        url = f"{service.url}/v1/modes/eager/generate"
        return httpx.post(url, json=body, timeout=PATIENCE_SECONDS, trust_env=False).status_code
    except httpx.TransportError:
        return 0


def anatomy_hit(number: signal.Signals, moment: Moment) -> Experiment:
    """Signal `number` to the anatomy process in a study: that is answered with 503, and the engine serves."""

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            asked, pid = moment(service), service.anatomy()
            os.kill(pid, number)
            began = monotonic()
            answers = answers_of(asked)
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
            first = Study(service).wait()
            pid = service.anatomy()
            os.kill(pid, number)
            seconds = seconds_until(lambda: gone(pid), "its end")
            second = Study(service).wait()
            good = first == second == [200] and seconds <= NOTICED_SECONDS
            return Happened(f"studies before and after: {first}, {second}", seconds, good)

    return run


def front_killed(moment: Moment) -> Experiment:
    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            asked = moment(service)
            left = descendants(service.process.pid)
            service.process.kill()
            service.process.wait()
            seconds = seconds_until(lambda: all(map(gone, left)), "the end of its children")
            answers_of(asked)
            return Happened(f"{len(left)} children, none left", seconds, seconds <= ENDED_SECONDS)

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


def front_stopped(moment: Moment) -> Experiment:
    """SIGSTOP to the front for longer than a hang takes to be noticed, and than a pause is leased.

    The engine is the same, and studies go on.
    """

    def run(folder: Path) -> Happened:
        with victim(folder) as service:
            asked, pid = moment(service), service.engine()
            service.process.send_signal(signal.SIGSTOP)
            threading.Event().wait(NOTICED_SECONDS + 3)
            service.process.send_signal(signal.SIGCONT)
            seconds = seconds_until(service.ready, "all modes ready")
            studies = [*answers_of(asked), *(Study(service).wait() if asked else [])]
            served = service.generate().status_code
            same = service.engine() == pid
            good = same and served == 200 and studies in ([], [200, 200], [503, 200])
            words = f"{'the same' if same else 'another'} engine answers with {served}"
            told = f"; studies before and after with {studies}" if asked else ""
            return Happened(words + told, seconds, good and seconds <= REPLACED_SECONDS)

    return run


def terminated(moment: Moment, signals: int = 1, stopped: bool = False, requests: int = 0) -> Experiment:
    """SIGTERM to the front, once or twice, with the engine `stopped` or not, with running `requests` or not:
    all ends.
    """

    def run(folder: Path) -> Happened:
        with victim(folder) as service, ThreadPoolExecutor(max(1, requests)) as pool:
            study, left = moment(service), descendants(service.process.pid)
            body = {**BODY, "max_new_tokens": 100, "ignore_eos": True}
            asked = [pool.submit(_status, service, body) for _ in range(requests)]
            if requests:
                until(lambda: service.in_progress() == requests, "running requests")
            if stopped:
                os.kill(service.engine(), signal.SIGSTOP)
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
            told += f", study answered with {study.wait()}" if study else ""
            return Happened(words + told, seconds, clean and seconds <= most)

    return run


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
