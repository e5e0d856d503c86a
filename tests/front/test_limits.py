"""A connection's protocol without a socket: timers, heads in segments, unread answers, joined writes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, cast
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from service.front.limits import MAX_HEAD_BYTES, RESERVED, BoundedProtocol, Slots, UnreadAnswer
from service.front.settings import Settings

SETTINGS = Settings(head_timeout_seconds=10, body_timeout_seconds=20, unread_timeout_seconds=30)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"


class Transport:
    """Takes what is written, and remembers its end."""

    def __init__(self) -> None:
        self.written = b""
        self.ended = ""

    def get_extra_info(self, _name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return bool(self.ended)

    def pause_reading(self) -> None:
        """What it is told is in one piece anyway."""

    def resume_reading(self) -> None:
        """As `pause_reading`."""

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"


async def answer_at_once(_scope: object, _receive: object, send: Callable[[Any], Awaitable[None]]) -> None:
    """An app that reads no body."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def connected(app: Callable[..., Awaitable[None]] = answer_at_once) -> tuple[BoundedProtocol, Transport]:
    """A new connection to `app`; there is a running loop."""
    protocol, transport = new(app, Slots(8, lambda _count, _most: None)), Transport()
    protocol.connection_made(cast(asyncio.Transport, transport))
    return protocol, transport


def new(app: Callable[..., Awaitable[None]], slots: Slots) -> BoundedProtocol:
    config = uvicorn.Config(app, log_config=None, lifespan="off", access_log=False)
    config.load()
    refused = cast(Callable[[object], None], lambda _: None)
    return BoundedProtocol(config, ServerState(), {}, settings=SETTINGS, slots=slots, refused=refused)


async def turns() -> None:
    """Let the app answer."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("request_bytes", "later"),
    [(GET, b"\r\n"), (GET, b"\r\n\r\n"), (POST, b"body"), (POST, b"body\r\n")],
    ids=["empty line", "empty lines", "body after its answer", "body and an empty line"],
)
def test_what_is_sent_after_an_answer_leaves_the_connection_with_a_timer(
    request_bytes: bytes, later: bytes
) -> None:
    async def run() -> None:
        protocol, transport = connected()
        protocol.data_received(request_bytes)
        await turns()
        assert transport.written.endswith(b"ok")
        protocol.data_received(later)
        timer = protocol.timeout_keep_alive_task
        assert timer is not None
        assert not timer.cancelled()
        protocol.timeout_keep_alive_handler()
        assert transport.ended == "closed"
        protocol.connection_lost(None)

    asyncio.run(run())


def test_a_request_that_follows_an_answer_has_no_keep_alive_timer_until_it_is_answered() -> None:
    async def run() -> None:
        protocol, transport = connected()
        for _ in range(2):
            protocol.data_received(GET)
            assert protocol.timeout_keep_alive_task is None
            await turns()
            assert protocol.timeout_keep_alive_task is not None
        assert transport.written.count(b"ok") == 2
        protocol.connection_lost(None)

    asyncio.run(run())


def sent(data: bytes, segment_bytes: int, begun: bytes = b"") -> Transport:
    """What became of a connection that sent `begun`, and then `data` in segments until it was closed."""

    async def run() -> Transport:
        protocol, transport = connected()
        protocol.data_received(begun)
        await turns()
        for start in range(0, len(data), segment_bytes):
            if transport.is_closing():
                break
            protocol.data_received(data[start : start + segment_bytes])
        await turns()
        ended = transport.ended
        protocol.connection_lost(None)  # which closes the transport
        transport.ended = ended
        return transport

    return asyncio.run(run())


@pytest.mark.parametrize("segment_bytes", [100, 1460, 9000, 65_536])
@pytest.mark.parametrize(
    "fields",
    [b"X: " + b"x" * (MAX_HEAD_BYTES - 200) + b"\r\n", (b"X-Part: " + b"x" * 490 + b"\r\n") * 64],
    ids=["one long field", "many fields"],
)
def test_a_head_within_the_limit_is_served_in_segments_of_any_size(fields: bytes, segment_bytes: int) -> None:
    head = GET[:-2] + fields + b"\r\n"
    assert MAX_HEAD_BYTES * 0.95 < len(head) <= MAX_HEAD_BYTES
    assert sent(head, segment_bytes).written.startswith(b"HTTP/1.1 200")


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("segment_bytes", [100, 1460, 9000])
def test_a_field_without_end_is_refused_when_it_is_over_the_limit(segment_bytes: int) -> None:
    endless = b"x" * (MAX_HEAD_BYTES + segment_bytes)
    assert sent(endless, segment_bytes, GET[:-2] + b"X: ").written.startswith(b"HTTP/1.1 431")
    assert sent(2 * endless, segment_bytes, CHUNKED + b"0\r\nX: ").is_closing()  # a trailer


def test_a_long_body_in_chunks_whose_sizes_come_alone_is_no_head() -> None:
    transport = sent(b"00000008\r\nsomebody\r\n" * 4096 + b"0\r\n\r\n", 10, CHUNKED)
    assert transport.written.startswith(b"HTTP/1.1 200")
    assert not transport.is_closing()


def test_silent_clients_accepted_in_one_go_do_not_crowd_out_a_head_that_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener, ExitStack() as clients:

        def client() -> socket.socket:
            return clients.enter_context(socket.create_connection(listener.getsockname()))

        client(), client()
        probe = client()
        probe.sendall(GET.replace(b"/ ", b"/health/live "))
        probe.setblocking(False)
        for _ in range(2 * RESERVED):
            client()
        assert asyncio.run(answer_to(probe, listener, clients)).endswith(b"ok")


async def answer_to(probe: socket.socket, listener: socket.socket, clients: ExitStack) -> bytes:
    """What `probe`, one of the `clients` that wait to be accepted, gets from a server with one place."""
    loop, open_now = asyncio.get_running_loop(), [0]

    def counted(count: int, _most: int) -> None:
        open_now[0] = count

    slots = Slots(1, counted)
    async with await loop.create_server(lambda: new(answer_at_once, slots), sock=listener):
        answer = await asyncio.wait_for(loop.sock_recv(probe, 4096), 60)
        clients.close()
        while open_now[0]:
            await asyncio.sleep(0)
    return answer


def test_a_reader_is_cut_off_when_it_stops_and_not_while_it_takes_some_each_time() -> None:
    loop, transport = Mock(), Mock()
    unread = UnreadAnswer(loop, transport, 30.0)

    def run_out() -> None:
        """The newest timer's time is up."""
        seconds, callback = loop.call_later.call_args.args
        assert seconds == 30.0
        callback()

    transport.get_write_buffer_size.return_value = 1_000_000
    unread.paused()
    for _ in range(5):
        transport.get_write_buffer_size.return_value -= 100_000
        run_out()
    transport.abort.assert_not_called()
    unread.over()
    loop.call_later.return_value.cancel.assert_called_once()
    unread.paused()
    run_out()
    transport.abort.assert_called_once()
