"""Clients that are slow, silent, half-open or gone, by the hundred; and an honest one beside them."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import uniform
from statistics import median
from time import monotonic, perf_counter
from urllib.parse import urlsplit

import httpx
import psutil

from service.front.limits import RESERVED
from tests.chaos.victim import BODY, PATIENCE_SECONDS, Happened, Victim, seconds_until, victim
from tests.support.processes import descendants
from tests.support.serving import HEAD, until


@dataclass(slots=True)
class Answers:
    """What came of requests: latencies in seconds, and every status or output that is not as it must be.

    `refused` counts the answers 429, after which the same is asked again when that said.
    """

    seconds: list[float] = field(default_factory=list)
    amiss: list[str] = field(default_factory=list)
    refused: int = 0

    @property
    def median_ms(self) -> float:
        return median(self.seconds) * 1e3


def ask_while(going: Callable[[int], bool], url: str, outputs: object = None, **body: object) -> Answers:
    """Generate as long as `going`, which is given the count so far; all outputs must be `outputs`."""
    found = Answers()
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
        while going(len(found.seconds)):
            began = perf_counter()
            answer = http.post("/v1/modes/eager/generate", json={**BODY, **body})
            if answer.status_code == 429:
                found.refused += 1
                threading.Event().wait(float(answer.headers["retry-after"]))
                continue
            found.seconds.append(perf_counter() - began)
            if answer.status_code != 200:
                found.amiss.append(f"{answer.status_code}: {answer.text[:100]}")
            elif outputs is not None and answer.json()["outputs"] != outputs:
                found.amiss.append("another output")
    return found


def ask(count: int, url: str, **body: object) -> Answers:
    return ask_while(lambda done: done < count, url, **body)


TRICKLE_SECONDS = 0.5
"""Between two bytes of a client that sends slowly."""

VANISH_SECONDS, PAUSE_SECONDS = 0.03, 1.0
"""When a client has gone that does not wait for its answer, and how long until the next one comes."""

RECEIVE_BYTES = 4096
LARGE_ANSWER = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"

Behaviour = Callable[["Connection"], Awaitable[None]]


class Connection:
    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self._port = port
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        await self._loop.sock_connect(self._socket, ("127.0.0.1", self._port))

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def trickle(self, data: bytes) -> None:
        """Send `data` byte by byte. Raises ConnectionError once the service has closed."""
        for place in range(len(data)):
            await self.send(data[place : place + 1])
            await asyncio.sleep(TRICKLE_SECONDS)

    async def until_closed(self) -> None:
        while await self._loop.sock_recv(self._socket, 65_536):
            continue

    def end_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self, reset: bool = False) -> None:
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def request(**body: object) -> bytes:
    content = json.dumps({**BODY, **body}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content


async def silent(connection: Connection) -> None:
    """Sends nothing; the next one comes a while after it was turned away, and not all of them at once."""
    await connection.until_closed()
    await asyncio.sleep(PAUSE_SECONDS * uniform(0.5, 1.5))


async def slow_head(connection: Connection) -> None:
    await connection.trickle(HEAD)


async def slow_body(connection: Connection) -> None:
    await connection.send(HEAD + b"Content-Length: 900\r\n\r\n")
    await connection.trickle(b" " * 900)


async def half_open(connection: Connection) -> None:
    """Closes its half behind the request, and waits for what comes."""
    await connection.send(request())
    connection.end_sending()
    await connection.until_closed()
    await asyncio.sleep(PAUSE_SECONDS)


async def unread(connection: Connection) -> None:
    await connection.send(LARGE_ANSWER)
    await connection.trickle(LARGE_ANSWER * 8)


async def vanishing(connection: Connection) -> None:
    """Is gone while its request runs or waits."""
    await connection.send(request(max_new_tokens=400, ignore_eos=True))
    await asyncio.sleep(VANISH_SECONDS)
    connection.close(reset=True)
    await asyncio.sleep(PAUSE_SECONDS)


async def vanishing_stream(connection: Connection) -> None:
    await connection.send(request(max_new_tokens=400, ignore_eos=True, stream=True))
    await asyncio.sleep(VANISH_SECONDS)
    connection.close(reset=True)
    await asyncio.sleep(PAUSE_SECONDS)


KINDS: tuple[Behaviour, ...] = (
    silent, slow_head, slow_body, half_open, unread, vanishing, vanishing_stream,
)  # fmt: skip


class Crowd:
    """`each` clients of all `kinds` against `url`, again and again, for `seconds`.

    `ended` counts by kind the connections that came to an end before the crowd did; `failed` the ones that
    could not be made.
    """

    def __init__(self, url: str, each: int, seconds: float, kinds: tuple[Behaviour, ...] = KINDS) -> None:
        self._kinds = kinds
        self._port = urlsplit(url).port or 0
        self._each, self._seconds = each, seconds
        self.ended: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    @property
    def size(self) -> int:
        return self._each * len(self._kinds)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        end = monotonic() + self._seconds
        async with asyncio.timeout(self._seconds + 5):
            clients = [self._client(kind, end) for kind in self._kinds for _ in range(self._each)]
            await asyncio.gather(*clients)

    async def _client(self, kind: Behaviour, end: float) -> None:
        while monotonic() < end:
            connection = Connection(self._port)
            try:
                async with asyncio.timeout(max(0.0, end - monotonic())):
                    await connection.open()
                    await kind(connection)
                self.ended[kind.__name__] += 1
            except TimeoutError:
                return
            except ConnectionRefusedError:
                self.failed[kind.__name__] += 1
            except OSError:
                self.ended[kind.__name__] += 1  # closed by the service while we sent
            finally:
                connection.close()


SECONDS, EACH = 45.0, 40
"""Longer than the longest deadline of a connection (30 s); 320 clients at a time."""

BEFORE = 30
TIMED = ("silent", "slow_head", "slow_body", "half_open", "unread")
"""The kinds that the service has to end."""

BEYOND = 1024
"""Silent clients: twice as many as connections are served."""

PROBE_SECONDS = 1.0
"""What an orchestrator waits for a probe's answer, by default."""


def crowded(folder: Path) -> Happened:
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
    return Happened(words, monotonic() - began, not wrong)


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
    return Happened(words, monotonic() - began, good)


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
