"""What strangers can take is bounded: heads, connections, unread answers; a head leaves with its body."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from service.front.limits import (
    MAX_HEAD_BYTES,
    RESERVED,
    BoundedProtocol,
    JoinedWrites,
    Slots,
    UnreadAnswer,
)
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


@pytest.mark.parametrize("segment_bytes", [100, 1460, 9000, 65_536])
@pytest.mark.parametrize(
    "fields",
    [
        b"X: " + b"x" * (MAX_HEAD_BYTES - 200) + b"\r\n",
        (b"X-Part: " + b"x" * 490 + b"\r\n") * 64,
    ],
    ids=["one long field", "many fields"],
)
def test_a_head_within_the_limit_is_served_in_segments_of_any_size(fields: bytes, segment_bytes: int) -> None:
    async def run() -> None:
        head = GET[:-2] + fields + b"\r\n"
        assert MAX_HEAD_BYTES * 0.95 < len(head) <= MAX_HEAD_BYTES
        protocol, transport = connected()
        for start in range(0, len(head), segment_bytes):
            protocol.data_received(head[start : start + segment_bytes])
        await turns()
        assert transport.written.startswith(b"HTTP/1.1 200")
        protocol.connection_lost(None)

    asyncio.run(run())


@pytest.mark.parametrize("segment_bytes", [100, 1460, 9000])
def test_a_field_without_end_is_refused_when_it_is_over_the_limit(segment_bytes: int) -> None:
    async def run() -> None:
        protocol, transport = connected()
        protocol.data_received(GET[:-2] + b"X: ")
        sent = 0
        while not transport.ended:
            assert sent <= MAX_HEAD_BYTES
            protocol.data_received(b"x" * segment_bytes)
            sent += segment_bytes
        assert transport.written.startswith(b"HTTP/1.1 431")
        protocol.connection_lost(None)

    asyncio.run(run())


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_field_without_end_behind_a_body_in_chunks_is_refused() -> None:
    async def run() -> None:
        protocol, transport = connected()
        protocol.data_received(CHUNKED + b"0\r\nX: ")
        await turns()
        for _ in range(2 * MAX_HEAD_BYTES // 4096):
            if transport.is_closing():
                break
            protocol.data_received(b"x" * 4096)
        assert transport.is_closing()

    asyncio.run(run())


def test_a_long_body_in_chunks_whose_sizes_come_alone_is_no_head() -> None:
    async def run() -> None:
        protocol, transport = connected()
        protocol.data_received(CHUNKED)
        for _ in range(4096):
            protocol.data_received(b"000000000004\r\n")
            protocol.data_received(b"body\r\n")
        protocol.data_received(b"0\r\n\r\n")
        await turns()
        assert transport.written.startswith(b"HTTP/1.1 200")
        assert not transport.is_closing()

    asyncio.run(run())


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


SECONDS = 30.0


class Clock:
    """A loop of which only the timers are there; one is set at a time."""

    def __init__(self) -> None:
        self.due: Callable[[], None] | None = None

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Clock:
        assert seconds == SECONDS
        self.due = callback
        return self

    def cancel(self) -> None:
        self.due = None

    def run_out(self) -> None:
        """The timer's time is up."""
        due, self.due = self.due, None
        assert due is not None
        due()


class Unwritten:
    """So many bytes are unwritten."""

    def __init__(self) -> None:
        self.unwritten = 1_000_000
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unwritten

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def transport() -> Unwritten:
    return Unwritten()


@pytest.fixture
def unread(clock: Clock, transport: Unwritten) -> UnreadAnswer:
    """An answer of which some is unwritten."""
    loop = cast(asyncio.AbstractEventLoop, clock)
    paused = UnreadAnswer(loop, cast(asyncio.Transport, transport), SECONDS)
    paused.paused()
    return paused


@pytest.mark.usefixtures("unread")
def test_a_reader_that_takes_some_of_it_each_time_is_not_cut_off(clock: Clock, transport: Unwritten) -> None:
    for _ in range(5):
        transport.unwritten -= 100_000
        clock.run_out()
    assert not transport.aborted


@pytest.mark.usefixtures("unread")
def test_a_reader_that_stops_is_cut_off_at_the_next_look(clock: Clock, transport: Unwritten) -> None:
    transport.unwritten -= 100_000
    clock.run_out()
    clock.run_out()
    assert transport.aborted
    assert clock.due is None


def test_nothing_is_looked_at_once_it_is_taken(clock: Clock, unread: UnreadAnswer) -> None:
    unread.over()
    assert clock.due is None


JOINED_HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Written:
    """Remembers what is done to it."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.done


async def joined() -> tuple[Written, JoinedWrites]:
    transport = Written()
    return transport, JoinedWrites(cast(asyncio.Transport, transport), asyncio.get_running_loop())


def test_a_head_leaves_with_the_first_bytes_of_its_body_and_the_rest_follows() -> None:
    async def run() -> None:
        transport, writes = await joined()
        for data in (JOINED_HEAD, b"one", b"two"):
            writes.write(data)
        await asyncio.sleep(0)
        writes.write(b"three")
        assert transport.done == [JOINED_HEAD + b"one", b"two", b"three"]

    asyncio.run(run())


def test_a_head_without_a_body_leaves_at_the_end_of_the_turn() -> None:
    async def run() -> None:
        transport, writes = await joined()
        writes.write(JOINED_HEAD)
        assert transport.done == []
        await asyncio.sleep(0)
        assert transport.done == [JOINED_HEAD]

    asyncio.run(run())


def test_two_answers_in_a_row_stay_whole_and_in_order() -> None:
    async def run() -> None:
        transport, writes = await joined()
        for data in (JOINED_HEAD, b"one", JOINED_HEAD, b"two"):
            writes.write(data)
        await asyncio.sleep(0)
        assert transport.done == [JOINED_HEAD + b"one", JOINED_HEAD + b"two"]

    asyncio.run(run())


def test_closing_writes_the_head_before_and_everything_else_is_the_transports() -> None:
    async def run() -> None:
        transport, writes = await joined()
        writes.write(JOINED_HEAD)
        assert not writes.is_closing()
        writes.close()
        assert transport.done == [JOINED_HEAD, "closed"]
        assert writes.is_closing()

    asyncio.run(run())
