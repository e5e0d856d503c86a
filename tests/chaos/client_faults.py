"""Clients of every bad kind at once, or more of them than connections are served, while honest ones go on."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import psutil

from service.front.limits import RESERVED
from tests.chaos.crowd import Crowd, silent
from tests.chaos.fault import Happened, seconds_until
from tests.chaos.honest import ask, ask_while
from tests.chaos.victim import PATIENCE_SECONDS, Victim, victim
from tests.support.processes import descendants
from tests.support.serving import until

SECONDS, EACH = 45.0, 40
"""Longer than the longest deadline of a connection (30 s); 320 clients at a time."""

BEFORE = 30
TIMED = ("silent", "slow_head", "slow_body", "slow_large_body", "half_open", "unread")
"""The kinds that the service has to end."""

BEYOND = 1024
"""Silent clients: twice as many as connections are served."""

PROBE_SECONDS = 1.0
"""What an orchestrator waits for a probe's answer, by default."""


def crowded(folder: Path) -> Happened:
    """Hundreds of bad clients for a while."""
    with victim(folder) as service:
        service.await_warm()
        return among(service, EACH, SECONDS, BEFORE)


def among(service: Victim, each: int, seconds: float, alone: int) -> Happened:
    """What an honest client finds beside `each` clients of every bad kind, and what is left of these.

    It sends `alone` requests before them and after them.
    """
    engine, front = service.engine(), psutil.Process(service.process.pid)
    tokens = service.generate().json()["outputs"]
    before = ask(alone, service.url)
    service.at_rest()
    descriptors = front.num_fds()
    crowd, began = Crowd(service.url, each, seconds), monotonic()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(crowd.run)
        beside = ask_while(lambda _: not running.done(), service.url, tokens)
        running.result()
    left = seconds_until(lambda: front.num_fds() <= descriptors, "the end of their connections")
    after = ask(alone, service.url, outputs=tokens)
    wrong = [*before.amiss, *beside.amiss, *after.amiss]
    wrong += [f"no {kind} was ended" for kind in TIMED if not crowd.ended[kind]]
    if crowd.failed:
        wrong.append(f"refused: {dict(crowd.failed)}")
    if service.engine() != engine or engine not in descendants(front.pid):
        wrong.append("another engine")
    words = (
        f"{crowd.size} at a time, {crowd.ended.total()} ended; {len(beside.seconds)} honest requests "
        f"{'all as before' if not wrong else wrong[0]} ({beside.refused} told to come back), "
        f"median {before.median_ms:.0f} ms before, {beside.median_ms:.0f} beside, {after.median_ms:.0f} "
        f"after; connections gone {left:.1f} s later"
    )
    numbers = {"before_ms": before.median_ms, "beside_ms": beside.median_ms, "after_ms": after.median_ms}
    return Happened(words, monotonic() - began, not wrong, numbers)


def beyond_the_cap(folder: Path) -> Happened:
    """Twice as many silent clients as connections are served, again and again, beside probes and scrapes."""
    with victim(folder) as service:
        service.await_warm()
        return beside_silent(service, BEYOND, SECONDS)


def beside_silent(service: Victim, count: int, seconds: float) -> Happened:
    """What probes and scrapes get, each on a connection of its own, beside `count` silent clients."""
    port, engine = urlsplit(service.url).port or 0, service.engine()
    front = psutil.Process(service.process.pid)
    descriptors, before = front.num_fds(), service.series()
    refused = 'requests_rejected_total{reason="connections"}'
    crowd, began = Crowd(service.url, count, seconds, (silent,)), monotonic()
    answers: Counter[str] = Counter()
    slowest = 0.0
    with ThreadPoolExecutor(1) as pool, _prompt_threads():
        running = pool.submit(crowd.run)
        all_came = before[refused] + count - before["connections_max"] - RESERVED
        until(lambda: service.series()[refused] >= all_came, "the cap", PATIENCE_SECONDS)
        while not running.done():
            for path in ("/health/live", "/health/ready", "/metrics"):
                asked = monotonic()
                answers[_probed(port, path)] += 1
                slowest = max(slowest, monotonic() - asked)
        running.result()
    left = seconds_until(lambda: front.num_fds() <= descriptors, "the end of their connections")
    series = service.series()
    counted = series[refused] - before[refused]
    good = answers.keys() == {"200"} and counted > 0 and service.engine() == engine
    good = good and slowest <= PROBE_SECONDS and service.generate().status_code == 200
    words = (
        f"{count} silent clients, {crowd.ended.total()} ended, {counted:.0f} of these for want of a place; "
        f"probes and scrapes answered {dict(answers)}, the slowest in {slowest * 1e3:.0f} ms; connections "
        f"gone {left:.1f} s later"
    )
    return Happened(words, monotonic() - began, good, {"slowest_probe_seconds": slowest, "refused": counted})


@contextmanager
def _prompt_threads() -> Iterator[None]:
    """A probe sends its head at once; here the thread of the crowd could keep it from that for 5 ms."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _probed(port: int, path: str) -> str:
    """The status of one answer, or how the connection broke."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        try:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            return connection.recv(65_536).split(b" ", 2)[1].decode()
        except OSError as error:
            return type(error).__name__
