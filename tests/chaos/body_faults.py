"""Bodies of a megabyte that cannot be served, as fast as they are refused: what they do to the event loop."""

from __future__ import annotations

import math
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import psutil

from loadtests.run.machine import off_cores
from tests.chaos.fault import Happened
from tests.chaos.victim import Victim, victim
from tests.front.test_bad_input import FLOODS

ATTACKERS = 8
SECONDS = 20.0
MOST_LAG_SECONDS = 0.005
SHARE = 0.99
REFUSED = frozenset({400, 422, 429})
READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Lag:
    """Readings of the loop's lag: how many, and how many up to each boundary in seconds."""

    readings: float
    up_to: dict[float, float]

    def since(self, before: Lag) -> Lag:
        """Those after `before`."""
        grown = {boundary: count - before.up_to[boundary] for boundary, count in self.up_to.items()}
        return Lag(self.readings - before.readings, grown)

    def quantile(self, share: float) -> float:
        """The first boundary below which `share` of the readings lie."""
        return next(edge for edge, count in sorted(self.up_to.items()) if count >= share * self.readings)


@dataclass(frozen=True, slots=True)
class Attack:
    """What came of it; `unharmed`: the same engine answers with the same tokens afterwards."""

    statuses: Counter[int]
    lag: Lag
    unharmed: bool


def bodies_attack(folder: Path) -> Happened:
    """All kinds of bad bodies over eight connections, away from the front's core."""
    with victim(folder) as service:
        service.await_warm()
        with off_cores(psutil.Process(service.process.pid).cpu_affinity()):
            found = attacked(service, SECONDS)
    p99 = found.lag.quantile(SHARE)
    counts = ", ".join(f"{status} ({count})" for status, count in sorted(found.statuses.items()))
    words = (
        f"{found.statuses.total()} bodies over {ATTACKERS} connections answered with {counts}; p99 of "
        f"{found.lag.readings:.0f} readings of the loop's lag ≤ {p99 * 1e3:g} ms"
        f"{'' if found.unharmed else '; then served otherwise'}"
    )
    good = p99 <= MOST_LAG_SECONDS and found.statuses.keys() <= REFUSED and found.unharmed
    numbers = {"lag_p99_at_most_seconds": p99, "bodies": found.statuses.total()}
    return Happened(words, SECONDS, good, numbers)


def attacked(service: Victim, seconds: float) -> Attack:
    """Bad bodies for `seconds`, and longer where not every attacker has sent each kind."""
    engine, tokens = service.engine(), service.generate().json()["outputs"]
    before, end = lag(service), monotonic() + seconds
    with ThreadPoolExecutor(ATTACKERS) as pool:
        attackers = [pool.submit(attack, service.url, end, number) for number in range(ATTACKERS)]
        statuses = sum((one.result() for one in attackers), Counter[int]())
    found = lag(service).since(before)
    unharmed = service.generate().json()["outputs"] == tokens and service.engine() == engine
    return Attack(statuses, found, unharmed)


def lag(service: Victim) -> Lag:
    """The loop-lag metric as it is now."""
    begin = 'event_loop_lag_seconds_bucket{le="'
    up_to = {
        math.inf if (edge := name.removeprefix(begin).rstrip('"}')) == "+Inf" else float(edge): count
        for name, count in service.series().items()
        if name.startswith(begin)
    }
    return Lag(up_to[math.inf], up_to)


def attack(url: str, end: float, first: int) -> Counter[int]:
    """Each kind of bad body once, from the one at place `first` on, and again until `end`; their statuses."""
    statuses = Counter[int]()
    kinds = [_request(path, body) for path, body, _ in FLOODS.values()]
    port = urlsplit(url).port or 0
    requests = islice(cycle(kinds), first % len(kinds), None)
    connection = socket.create_connection(("127.0.0.1", port))
    try:
        while statuses.total() < len(kinds) or monotonic() < end:
            status, closes = _exchange(connection, next(requests))
            statuses[status] += 1
            if closes:
                connection.close()
                connection = socket.create_connection(("127.0.0.1", port))
    finally:
        connection.close()
    return statuses


def _request(path: str, body: str) -> bytes:
    content = body.encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def _exchange(connection: socket.socket, request: bytes) -> tuple[int, bool]:
    """Send one request, and read its answer: the status, and whether the connection is closed behind it."""
    with suppress(ConnectionError):  # answered and closed before all of it was sent: the answer is there
        connection.sendall(request)
    received = b""
    while b"\r\n\r\n" not in received:
        received += (data := connection.recv(READ_BYTES))
        if not data:
            raise ConnectionError("closed without an answer")
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    left = int(headers["content-length"]) - len(body)
    while left > 0 and (data := connection.recv(READ_BYTES)):
        left -= len(data)
    return int(lines[0].split(" ")[1]), headers.get("connection") == "close"
