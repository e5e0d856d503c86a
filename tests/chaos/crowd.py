"""Hundreds of clients that are slow, silent, half-open, or gone in the middle of a request: on one thread."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from random import uniform
from time import monotonic
from urllib.parse import urlsplit

from tests.chaos.victim import BODY
from tests.support.serving import HEAD

TRICKLE_SECONDS = 0.5
"""Between two bytes of a client that sends slowly."""

VANISH_SECONDS, PAUSE_SECONDS = 0.03, 1.0
"""When a client has gone that does not wait for its answer, and how long until the next one comes."""

RECEIVE_BYTES = 4096
LARGE_ANSWER = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"

Behaviour = Callable[["Connection"], Awaitable[None]]


class Connection:
    """One raw connection of the crowd."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self._port = port
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Connect."""
        await self._loop.sock_connect(self._socket, ("127.0.0.1", self._port))

    async def send(self, data: bytes) -> None:
        """Send all of `data`."""
        await self._loop.sock_sendall(self._socket, data)

    async def trickle(self, data: bytes) -> None:
        """Send `data` byte by byte. Raises ConnectionError once the service has closed."""
        for place in range(len(data)):
            await self.send(data[place : place + 1])
            await asyncio.sleep(TRICKLE_SECONDS)

    async def until_closed(self) -> None:
        """Read until the service closes."""
        while await self._loop.sock_recv(self._socket, 65_536):
            continue

    def end_sending(self) -> None:
        """The half of this connection that sends is closed."""
        self._socket.shutdown(socket.SHUT_WR)

    def vanish(self) -> None:
        """Reset the connection."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        """Close it, if that has not been done."""
        self._socket.close()


def request(**body: object) -> bytes:
    """A whole request to generate."""
    content = json.dumps({**BODY, **body}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content


async def silent(connection: Connection) -> None:
    """Sends nothing; the next one comes a while after it was turned away, and not all of them at once."""
    await connection.until_closed()
    await asyncio.sleep(PAUSE_SECONDS * uniform(0.5, 1.5))


async def slow_head(connection: Connection) -> None:
    """Sends a head byte by byte."""
    await connection.trickle(HEAD)


async def slow_body(connection: Connection) -> None:
    """Sends a body byte by byte."""
    await connection.send(HEAD + b"Content-Length: 900\r\n\r\n")
    await connection.trickle(b" " * 900)


async def slow_large_body(connection: Connection) -> None:
    """Sends a body byte by byte that takes a place before it is received."""
    await connection.send(HEAD + b"Content-Length: 900000\r\n\r\n")
    await connection.trickle(b" " * 900)


async def half_open(connection: Connection) -> None:
    """Closes its half behind the request, and waits for what comes."""
    await connection.send(request())
    connection.end_sending()
    await connection.until_closed()
    await asyncio.sleep(PAUSE_SECONDS)


async def unread(connection: Connection) -> None:
    """Asks for a large answer, and takes none of it."""
    await connection.send(LARGE_ANSWER)
    await connection.trickle(LARGE_ANSWER * 8)


async def vanishing(connection: Connection) -> None:
    """Is gone while its request runs or waits."""
    await connection.send(request(max_new_tokens=400, ignore_eos=True))
    await asyncio.sleep(VANISH_SECONDS)
    connection.vanish()
    await asyncio.sleep(PAUSE_SECONDS)


async def vanishing_stream(connection: Connection) -> None:
    """Is gone in the middle of a stream."""
    await connection.send(request(max_new_tokens=400, ignore_eos=True, stream=True))
    await asyncio.sleep(VANISH_SECONDS)
    connection.vanish()
    await asyncio.sleep(PAUSE_SECONDS)


KINDS: tuple[Behaviour, ...] = (
    silent, slow_head, slow_body, slow_large_body, half_open, unread, vanishing, vanishing_stream,
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
        """How many clients there are at a time."""
        return self._each * len(self._kinds)

    def run(self) -> None:
        """Do it, on this thread."""
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
