"""Bounds on what clients can take: connections, heads, the time of bodies, unread answers, memory.

The server has no such limits with its fast parser: see docs/decisions/front.md.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import resource
import termios
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Literal, cast

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from service.front.access import OPEN
from service.front.errors import (
    HeadTooLarge,
    LaunchboundError,
    Malformed,
    QueueFull,
    Rejection,
    TooManyConnections,
    TooSlow,
    error_body,
)
from service.front.settings import Settings

log = logging.getLogger("launchbound.connections")

MAX_HEAD_BYTES = 32_768
MAX_HEADERS = 100

MAX_PIECES = 8192
"""Pieces of one body: each costs a call, so a body in chunks of one byte would hold the event loop."""

MAX_DISCARDED_BYTES = 1_048_576
"""How much of a body is read after its answer, for clients that send all before they read."""

MAX_PIPELINED = 8
"""Requests sent ahead on one connection; no client of ours sends any."""

ANSWER_SECONDS = 1.0
"""From a body's deadline, at which its route answers 408, until its connection is closed."""

RESERVED = 32
"""Connections beside `max_connections`, for requests of health and metrics alone."""

RESERVED_HEAD_SECONDS = 1.0
"""The time for the head of such a request: probes and scrapers send it at once."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `refused` gets the reason of a refusal that happens before there is a request."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        settings: Settings,
        slots: Slots,
        refused: Callable[[Rejection], None],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = _Parser(self)
        self._settings = settings
        self._slots = slots
        self._reserved = self._keeps_alive = False
        self._refused = refused
        self._refusal: LaunchboundError | None = None
        self._arriving: Literal["head", "body"] | None = "head"
        self._begun = False
        self._stage = self._timed_stage = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unread: UnreadAnswer = None  # type: ignore[assignment]
        self._head = _HeadSize()
        self._pieces = self._discarded = 0

    @property
    def idle(self) -> bool:
        """Whether the first head is incomplete, and none of it waits in the socket's buffer.

        The event loop accepts many connections in one go before it reads from any of them.
        """
        head_complete = self.cycle is not None
        return not (head_complete or _bytes_to_read(self.transport))

    def crowd_out(self) -> None:
        self._answer(self._too_many())

    # ------------------------------------------------------------ the transport's events

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, JoinedWrites(transport, self.loop)))
        self._unread = UnreadAnswer(self.loop, self.transport, self._settings.unread_timeout_seconds)
        self._reserved = self._slots.take(self)
        self._timer = self.loop.call_later(self._head_seconds(), self._late)

    def data_received(self, data: bytes) -> None:
        head, before = self._head if self._begun else None, (self._head.parsed, self._pieces)
        super().data_received(data)
        unparsed = head is self._head and self._arriving and (head.parsed, self._pieces) == before
        if unparsed and self._head.add_unparsed(len(data), self._pieces):
            self._answer(_head_too_large())
        if self._stage != self._timed_stage:
            self._set_timer()
        if self._arriving is None and self.cycle.response_complete and not self.timeout_keep_alive_task:
            # The server stops this timer at any byte, even an empty line or a body that was answered early.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._slots.leave(self)
        self._unread.over()
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.over()

    # ------------------------------------------------------------ the parser's events

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = _HeadSize()
        self._pieces = self._discarded = 0
        self._arriving, self._begun = "head", True
        self._stage += 1
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(Malformed(f"more than {MAX_PIPELINED} requests were sent ahead: await the answers"))

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if self._arriving == "body":  # a trailer, which no check of the headers has seen
            return
        super().on_header(name, value)
        if self.headers[-1][0] == b"transfer-encoding" and value.lower() != b"chunked":
            self._refuse(Malformed("of transfer encodings only chunked is served: send the body as it is"))
        if len(self.headers) > MAX_HEADERS:
            self._refuse(HeadTooLarge(f"a request may have {MAX_HEADERS} headers: send fewer"))

    def on_headers_complete(self) -> None:
        """The head is complete. If it offers another protocol, `offered` parses it again."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._refuse(Malformed("CONNECT is for proxies: send the request itself"))
            return
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse(Malformed(f"this is HTTP/{version}: send HTTP/1.1"))
        if self._reserved and httptools.parse_url(self.url).path.decode("latin-1") not in OPEN:
            self._refuse(self._too_many())
        if version == "1.0":
            self.expect_100_continue = False  # such a client knows no answer of that kind
        super().on_headers_complete()
        if self._reserved:
            self.cycle.keep_alive = False
        if self.expect_100_continue:
            # A client that is answered before it sends the body may leave the body out, so that what
            # follows could be either: the connection is kept only once the whole body is here.
            self._keeps_alive, self.cycle.keep_alive = self.cycle.keep_alive, False
        self._arriving = "body"
        self._stage += 1

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        if self._pieces > MAX_PIECES:
            self._refuse(Malformed(f"a body may come in {MAX_PIECES} pieces: send it in larger ones"))
        if self.cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > MAX_DISCARDED_BYTES:
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self.expect_100_continue and not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive
        self._arriving, self._begun = None, False
        self._stage += 1
        if not self.pipeline:
            self.scope[BODY_IS_HERE] = True  # type: ignore[literal-required]

    def send_400_response(self, msg: str) -> None:
        self._answer(self._refusal or Malformed(f"{msg} Send HTTP/1.1"))

    def offered(self, rest: bytes) -> None:
        """Ignore an offer of another protocol: parse the head again without it, and then `rest`.

        The parser would take what follows such a head for the other protocol, or for the next request: a body
        would be left out, or run.
        """
        line = b"%s %s HTTP/%s\r\n" % (
            self.parser.get_method(), self.url, self.parser.get_http_version().encode(),
        )  # fmt: skip
        fields = [b"%s: %s\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = _Parser(self)
        self.parser.feed_data(b"".join([line, *fields, b"\r\n", rest]))

    # ------------------------------------------------------------ limits

    def _too_many(self) -> TooManyConnections:
        most = self._slots.most
        return TooManyConnections(f"{most} connections are open; try again", retry_after_seconds=1)

    def _head_seconds(self) -> float:
        seconds = self._settings.head_timeout_seconds
        return min(seconds, RESERVED_HEAD_SECONDS) if self._reserved else seconds

    def _count(self, size: int) -> None:
        if self._head.add(size):
            self._refuse(_head_too_large())

    def _refuse(self, refusal: LaunchboundError) -> None:
        """Stop the parser here; `send_400_response` then answers."""
        self._refusal = refusal
        raise refusal

    def _set_timer(self) -> None:
        self._timed_stage = self._stage
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._arriving is not None:
            head = self._arriving == "head"
            seconds = self._head_seconds() if head else self._settings.body_timeout_seconds + ANSWER_SECONDS
            self._timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        """Answer a late head, which no route knows of; the route has answered a late body."""
        if self._arriving == "head" and self._reserved:
            self.crowd_out()
        elif self._arriving == "head" and self._begun:
            seconds = self._settings.head_timeout_seconds
            self._answer(TooSlow(f"the request's head did not arrive within {seconds:g} s; send it at once"))
        elif not self.transport.is_closing():
            self.transport.close()

    def _answer(self, refusal: LaunchboundError) -> None:
        """Answer and close; an answer that has begun is only cut off."""
        if self.transport.is_closing():
            return
        begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if begun or self.pipeline:
            self.transport.abort()
            return
        if refusal.rejection is not None:
            self._refused(refusal.rejection)
        self.transport.write(_raw_answer(refusal, self.server_state.default_headers))
        self.transport.close()


class _Parser(httptools.HttpRequestParser):
    """The server's parser. Where a head offers another protocol, `offered` gets what follows."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        super().__init__(protocol)
        self._offered = protocol.offered
        # As the server sets it: the last request of a connection is answered whatever follows it.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._offered(data[offer.args[0] :])


class _HeadSize:
    """The size of a head, trailers included: complete elements (`parsed`), and what arrived since the last.

    The parser reports a field when it is complete, so one without end shows only in what arrives.
    """

    def __init__(self) -> None:
        self.parsed = 0
        self._unparsed = self._pieces = 0

    def add(self, size: int) -> bool:
        """Add a part of the address, or a whole field. Returns whether the head is too long."""
        self.parsed += size
        self._unparsed = 0
        return self.parsed > MAX_HEAD_BYTES

    def add_unparsed(self, size: int, pieces: int) -> bool:
        """Add bytes that completed neither an element nor a piece of the body, `pieces` of which came before.

        Returns whether the head is too long.
        """
        self._unparsed = size + (self._unparsed if pieces == self._pieces else 0)
        self._pieces = pieces
        return self.parsed + self._unparsed > MAX_HEAD_BYTES


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"request line and headers are over the limit of {MAX_HEAD_BYTES} bytes: send less")


def _bytes_to_read(transport: asyncio.Transport) -> int:
    arrived = array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, arrived)
    return arrived[0]


def _raw_answer(refusal: LaunchboundError, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A whole HTTP answer in the one error shape, the last one of its connection."""
    body = msgspec.json.encode(error_body(refusal.type, refusal.message, refusal.param))
    headers = [
        *default_headers,
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if refusal.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after_seconds))
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return STATUS_LINE[refusal.status] + lines + b"\r\n" + body


class UnreadAnswer:
    """While writing is paused, checks every `seconds`, and aborts where the client has taken nothing.

    The transport reports only when nearly all is taken, which may take a steady reader longer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = seconds
        self._unwritten = 0
        self._timer: asyncio.TimerHandle | None = None

    def paused(self) -> None:
        self._unwritten = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._seconds, self._check)

    def over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        if self._transport.get_write_buffer_size() < self._unwritten:
            self.paused()
        else:
            self._transport.abort()


class JoinedWrites:
    """Holds a head back until the next write, or the end of this turn of the event loop.

    The server writes head and body apart, and each write wakes the client and goes through TCP.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write `data` behind the head that is held back; nothing where the connection was cut off."""
        if self._transport.is_closing():
            return
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the transport has
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._head:
            data, self._head = self._head, b""
            if not self._transport.is_closing():
                self._transport.write(data)


WARN_SECONDS = 60.0
"""Between two warnings that all connections are taken, at least."""


class Slots:
    """The slots of open connections: `most` for any request, and RESERVED beside them.

    A connection that finds all taken gets the slot of the reserved one that has been idle for longest, so
    that idle clients, however many, cannot keep a probe out. `counted` gets the number of all, and `most`.
    """

    def __init__(self, most: int, counted: Callable[[int, int], None]) -> None:
        self.most = most
        self._counted = counted
        self._ordinary: set[BoundedProtocol] = set()
        self._reserved: dict[BoundedProtocol, None] = {}
        self._warned = -WARN_SECONDS

    def take(self, connection: BoundedProtocol) -> bool:
        reserved = len(self._ordinary) >= self.most
        if not reserved:
            self._ordinary.add(connection)
        else:
            self._warn()
            if len(self._reserved) >= RESERVED:
                idle = (held for held in self._reserved if held.idle)
                crowded_out = next(idle, next(iter(self._reserved)))
                del self._reserved[crowded_out]
                crowded_out.crowd_out()
            self._reserved[connection] = None
        self._count()
        return reserved

    def leave(self, connection: BoundedProtocol) -> None:
        self._ordinary.discard(connection)
        self._reserved.pop(connection, None)
        self._count()

    def _count(self) -> None:
        self._counted(len(self._ordinary) + len(self._reserved), self.most)

    def _warn(self) -> None:
        now = monotonic()
        if now - self._warned >= WARN_SECONDS:
            self._warned = now
            log.warning(
                "all %d connections are taken: until some end, only health and metrics are answered; raise"
                " LAUNCHBOUND_MAX_CONNECTIONS, or have a proxy limit the connections of each address",
                self.most,
            )


OTHER_DESCRIPTORS = 64
"""Files that the front has open beside its connections: logs, its children's pipes and sockets."""

DESCRIPTORS_EACH = 2
"""Of a connection: its socket, and the file that it is being sent. Probes are sent none."""


def affordable(connections: int) -> int:
    """As many of `connections` as this process may open files for, with its soft limit raised as needed.

    Raises ValueError where there is none.
    """
    needed = _descriptors(connections)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most == needed:
        return connections
    left = (most - _descriptors(0)) // DESCRIPTORS_EACH
    limited = f"this process may open {most} files (ulimit -n), {connections} connections need {needed}"
    if left < 1:
        raise ValueError(f"{limited}, and one needs {_descriptors(1)}: raise that limit")
    remedy = "raise that limit, or lower LAUNCHBOUND_MAX_CONNECTIONS"
    log.warning("%s: at most %d are served; %s", limited, left, remedy)
    return left


def _descriptors(connections: int) -> int:
    return OTHER_DESCRIPTORS + RESERVED + connections * DESCRIPTORS_EACH


BODY_IS_HERE = "launchbound.body_is_here"
"""The key of a request's scope that says that all of its body has arrived: to read it takes no timer."""

LARGE_BYTES = 65_536
"""A body up to this size fits in what the server reads ahead of a connection before the route begins."""

LEAST_SLOTS = 16
"""Of large bodies, where the queue is shorter: clients that wait for their turn in it send meanwhile."""


class LargeBodies:
    """Bounds the large bodies in memory to `slots`, and decodes one per pass of the event loop."""

    def __init__(self, max_queue: int) -> None:
        self.slots = max(LEAST_SLOTS, max_queue)
        self._reading = 0
        self._turn = asyncio.Lock()

    async def turn(self) -> None:
        await self._turn.acquire()
        asyncio.get_running_loop().call_soon(self._turn.release)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one of the slots. Raises QueueFull, before a byte is read, where none is left."""
        if self._reading >= self.slots:
            raise QueueFull(
                f"{self.slots} bodies of more than {LARGE_BYTES} bytes are being received; try again, or"
                " send smaller ones",
                retry_after_seconds=1,
            )
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
