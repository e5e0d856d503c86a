"""Bounds what one connection can take from the front: the size and the time of a request's head, the time of
its body, and the time for which an answer may lie unread. What it reads is framed as it says of itself.

The server has none of these with its fast parser: see docs/decisions/front.md.
"""

from __future__ import annotations

import asyncio
import fcntl
import termios
from array import array
from collections.abc import Callable
from typing import Any, Literal

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from service.front.api.origins import OPEN
from service.front.connection_limits import (
    RESERVED_HEAD_SECONDS,
    ConnectionLimits,
    Places,
    raw_answer,
)
from service.front.errors import LaunchboundError, Rejection
from service.front.head_size import HeadSize
from service.front.joined_writes import JoinedWritesProtocol
from service.front.refusals import HeadTooLarge, Malformed, TooManyConnections, TooSlow
from service.front.unread_answer import UnreadAnswer

MAX_HEADERS = 100
MAX_PIECES = 8192
"""Pieces of one body: each costs a call, so a body in chunks of one byte would hold the event loop."""

MAX_DISCARDED_BYTES = 1_048_576
"""What is read, for a client that sends on before it reads, of a body that has been answered already."""

MAX_PIPELINED = 8
"""Requests sent ahead on one connection; no client of ours sends any."""

ANSWER_SECONDS = 1.0
"""How long after a body's deadline its connection is closed: until then the route answers 408."""


class _Parser(httptools.HttpRequestParser):
    """The server's parser. Where a head offers another protocol, `offered` gets what follows that head."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        super().__init__(protocol)
        self._offered = protocol.offered
        # As the server has it: the answer to a request that is the last one is sent whatever follows it.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        """Parse `data`."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._offered(data[offer.args[0] :])


class BoundedProtocol(JoinedWritesProtocol):
    """One connection. `refused` is called with the reason where a request is refused before it is one."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        places: Places,
        refused: Callable[[Rejection], None],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = _Parser(self)
        self._limits = limits
        self._places = places
        self._reserved = self._keeps_alive = False
        self._refused = refused
        self._refusal: LaunchboundError | None = None
        self._arriving: Literal["head", "body"] | None = "head"
        self._begun = False
        self._stage = self._timed_stage = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unread: UnreadAnswer = None  # type: ignore[assignment]
        self._head = HeadSize()
        self._pieces = self._discarded = 0

    @property
    def silent(self) -> bool:
        """Whether the first request has no whole head, and none of it waits in the socket's buffer.

        The event loop accepts many connections in one go before it reads from any of them.
        """
        head_complete = self.cycle is not None
        return not (head_complete or _bytes_to_read(self.transport))

    def crowd_out(self) -> None:
        """Give up the place, which is needed for another connection."""
        self._answer(self._too_many())

    # ------------------------------------------------------------ the transport's events

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._unread = UnreadAnswer(self.loop, self.transport, self._limits.unread_seconds)
        self._reserved = self._places.take(self)
        self._timer = self.loop.call_later(self._head_seconds(), self._late)

    def data_received(self, data: bytes) -> None:
        """Parse `data`, and see to what is still to arrive."""
        head, before = self._head if self._begun else None, (self._head.parsed, self._pieces)
        super().data_received(data)
        if head is self._head and self._arriving is not None and (head.parsed, self._pieces) == before:
            refusal = head.segment(len(data), self._pieces)
            if refusal is not None:
                self._answer(refusal)
        if self._stage != self._timed_stage:
            self._set_timer()
        if self._arriving is None and self.cycle.response_complete and not self.timeout_keep_alive_task:
            # The server stops it at any byte, also at an empty line or a body that was answered early.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._places.leave(self)
        self._unread.over()
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read as fast as is written: it has some time to take more."""
        super().pause_writing()
        self._unread.paused()

    def resume_writing(self) -> None:
        """The client reads."""
        super().resume_writing()
        self._unread.over()

    # ------------------------------------------------------------ the parser's events

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._head = HeadSize()
        self._pieces = self._discarded = 0
        self._arriving, self._begun = "head", True
        self._stage += 1
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(Malformed(f"more than {MAX_PIPELINED} requests were sent ahead: await the answers"))

    def on_url(self, url: bytes) -> None:
        """A piece of the request line."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. A trailer is dropped: whoever looked at the headers before us has not seen it."""
        self._count(len(name) + len(value))
        if self._arriving == "body":
            return
        super().on_header(name, value)
        if self.headers[-1][0] == b"transfer-encoding" and value.lower() != b"chunked":
            self._refuse(Malformed("of transfer encodings only chunked is served: send the body as it is"))
        if len(self.headers) > MAX_HEADERS:
            self._refuse(HeadTooLarge(f"a request may have {MAX_HEADERS} headers: send fewer"))

    def on_headers_complete(self) -> None:
        """The head is there: it is a request, unless it offers another protocol, for `offered` to see to."""
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
            # Answered before its body is sent, it may leave that out: what follows could be either.
            self._keeps_alive, self.cycle.keep_alive = self.cycle.keep_alive, False
        self._arriving = "body"
        self._stage += 1

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._pieces += 1
        if self._pieces > MAX_PIECES:
            self._refuse(Malformed(f"a body may come in {MAX_PIECES} pieces: send it in larger ones"))
        if self.cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > MAX_DISCARDED_BYTES:
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request is there."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self.expect_100_continue and not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive
        self._arriving, self._begun = None, False
        self._stage += 1

    def send_400_response(self, msg: str) -> None:
        """What the parser refused, or one of the above made it refuse, in the shape of all errors."""
        self._answer(self._refusal or Malformed(f"{msg} Send HTTP/1.1"))

    def offered(self, rest: bytes) -> None:
        """Ignore an offer of another protocol: parse the head again, without it, and then `rest`.

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
        most = self._places.most
        return TooManyConnections(f"{most} connections are open; try again", retry_after_seconds=1)

    def _head_seconds(self) -> float:
        seconds = self._limits.head_seconds
        return min(seconds, RESERVED_HEAD_SECONDS) if self._reserved else seconds

    def _count(self, size: int) -> None:
        refusal = self._head.element(size)
        if refusal is not None:
            self._refuse(refusal)

    def _refuse(self, refusal: LaunchboundError) -> None:
        """Have the parser stop here, and `send_400_response` answer."""
        self._refusal = refusal
        raise refusal

    def _set_timer(self) -> None:
        """Wait for what is to arrive next, from now on."""
        self._timed_stage = self._stage
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._arriving is not None:
            head = self._arriving == "head"
            seconds = self._head_seconds() if head else self._limits.body_seconds + ANSWER_SECONDS
            self._timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        """A head is answered, as no route knows of it; of a body, the route has answered."""
        if self._arriving == "head" and self._reserved:
            self.crowd_out()
        elif self._arriving == "head" and self._begun:
            seconds = self._limits.head_seconds
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
        self.transport.write(raw_answer(refusal, self.server_state.default_headers))
        self.transport.close()


def _bytes_to_read(transport: asyncio.Transport) -> int:
    """Bytes that have arrived and that the event loop has not read."""
    arrived = array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, arrived)
    return arrived[0]
