"""Bounds on what clients can take: connections, heads, the time of heads and bodies.

The server has no such limits with its fast parser: see docs/decisions/front.md.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Iterable
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
    Rejection,
    TooManyConnections,
    TooSlow,
    error_body,
)
from service.front.settings import Settings

MAX_HEAD_BYTES = 32_768

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
        self._reserved = False
        self._refused = refused
        self._refusal: LaunchboundError | None = None
        self._arriving: Literal["head", "body"] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = self._unparsed_bytes = 0

    @property
    def idle(self) -> bool:
        """Whether no request has arrived yet."""
        return self.cycle is None

    def refuse_connection(self) -> None:
        self._answer(self._too_many())

    # ------------------------------------------------------------ the transport's events

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _OpenTransport(transport)))
        self._reserved = self._slots.take(self)
        self._expect(None, self._head_seconds())

    def data_received(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        super().data_received(data)
        # The parser reports a field when it is complete, so one without end shows only in what arrives.
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self._answer(_head_too_large())

    def connection_lost(self, exc: Exception | None) -> None:
        self._slots.leave(self)
        self._expect(None, None)
        super().connection_lost(exc)

    # ------------------------------------------------------------ the parser's events

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._unparsed_bytes = 0
        self._expect("head", self._head_seconds())

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. A trailer is dropped: the checks of the headers have not seen it."""
        self._count(len(name) + len(value))
        if self._arriving == "body":
            return
        super().on_header(name, value)
        if self.headers[-1][0] == b"transfer-encoding" and value.lower() != b"chunked":
            self._refuse(Malformed("of transfer encodings only chunked is served: send the body as it is"))

    def on_headers_complete(self) -> None:
        """The head is complete. If it offers another protocol, `offered` parses it again."""
        self._unparsed_bytes = 0
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._refuse(Malformed("CONNECT is for proxies: send the request itself"))
            return
        if self._reserved and httptools.parse_url(self.url).path.decode("latin-1") not in OPEN:
            self._refuse(self._too_many())
        super().on_headers_complete()
        # A client that is answered before it sends the body may leave the body out, so that what follows
        # could be either.
        if self._reserved or self.expect_100_continue:
            self.cycle.keep_alive = False
        self._expect("body", self._settings.body_timeout_seconds + ANSWER_SECONDS)

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._unparsed_bytes = 0
        super().on_message_complete()
        self._expect(None, None)

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused, or what a callback above made it refuse."""
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
        text = f"{self._slots.most} connections are open: try again, or raise LAUNCHBOUND_MAX_CONNECTIONS"
        return TooManyConnections(text, retry_after_seconds=1)

    def _head_seconds(self) -> float:
        seconds = self._settings.head_timeout_seconds
        return min(seconds, RESERVED_HEAD_SECONDS) if self._reserved else seconds

    def _count(self, size: int) -> None:
        self._head_bytes += size
        self._unparsed_bytes = 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())

    def _refuse(self, refusal: LaunchboundError) -> None:
        """Stop the parser here; `send_400_response` then answers."""
        self._refusal = refusal
        raise refusal

    def _expect(self, arriving: Literal["head", "body"] | None, seconds: float | None) -> None:
        """What arrives from now on, None between two requests, and how long that may take."""
        self._arriving = arriving
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        """Answer a late head, which no route knows of; the route has answered a late body."""
        if self._reserved and self._arriving != "body":
            self.refuse_connection()
        elif self._arriving == "head":
            seconds = self._settings.head_timeout_seconds
            self._answer(TooSlow(f"the request's head did not arrive within {seconds:g} s; send it at once"))
        else:
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
    """The server's parser. Where a head offers another protocol, `offered` gets what follows that head."""

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


class _OpenTransport:
    """Drops what is written after the connection was cut off, at which uvloop raises."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the transport has
        return getattr(self._transport, name)


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"request line and headers are over the limit of {MAX_HEAD_BYTES} bytes: send less")


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


class Slots:
    """The slots of open connections: `most` for any request, and RESERVED beside them.

    A connection that finds all taken gets the slot of the oldest reserved one that is idle, so that idle
    clients, however many, cannot keep a probe out. `counted` gets the number of all, and `most`.
    """

    def __init__(self, most: int, counted: Callable[[int, int], None]) -> None:
        self.most = most
        self._counted = counted
        self._ordinary: set[BoundedProtocol] = set()
        self._reserved: dict[BoundedProtocol, None] = {}

    def take(self, connection: BoundedProtocol) -> bool:
        """A connection was made. Returns whether it has a reserved slot."""
        reserved = len(self._ordinary) >= self.most
        if not reserved:
            self._ordinary.add(connection)
        else:
            if len(self._reserved) >= RESERVED:
                idle = (held for held in self._reserved if held.idle)
                replaced = next(idle, next(iter(self._reserved)))
                del self._reserved[replaced]
                replaced.refuse_connection()
            self._reserved[connection] = None
        self._count()
        return reserved

    def leave(self, connection: BoundedProtocol) -> None:
        self._ordinary.discard(connection)
        self._reserved.pop(connection, None)
        self._count()

    def _count(self) -> None:
        self._counted(len(self._ordinary) + len(self._reserved), self.most)


OTHER_DESCRIPTORS = 64
"""Files that the front has open beside its connections: logs, its children's pipes and sockets."""

DESCRIPTORS_EACH = 2
"""Of a connection: its socket, and the file that it is being sent. Probes are sent none."""


def allow_open_files(connections: int) -> None:
    """Raise this process's soft limit of open files to what so many connections need.

    Raises ValueError where its hard limit is lower.
    """
    needed = OTHER_DESCRIPTORS + RESERVED + connections * DESCRIPTORS_EACH
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{connections} connections need {needed} open files, and this process may open {hard}"
            " (ulimit -n): raise that limit, or lower LAUNCHBOUND_MAX_CONNECTIONS"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
