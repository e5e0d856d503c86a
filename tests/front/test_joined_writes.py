"""An answer's head leaves with its body, and never waits longer than a turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import cast

from service.front.limits import JoinedWrites

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Transport:
    """Remembers what is done to it."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.done


async def joined() -> tuple[Transport, JoinedWrites]:
    transport = Transport()
    return transport, JoinedWrites(cast(asyncio.Transport, transport), asyncio.get_running_loop())


def test_a_head_leaves_with_the_first_bytes_of_its_body_and_the_rest_follows() -> None:
    async def run() -> None:
        transport, writes = await joined()
        for data in (HEAD, b"one", b"two"):
            writes.write(data)
        await asyncio.sleep(0)
        writes.write(b"three")
        assert transport.done == [HEAD + b"one", b"two", b"three"]

    asyncio.run(run())


def test_a_head_without_a_body_leaves_at_the_end_of_the_turn() -> None:
    async def run() -> None:
        transport, writes = await joined()
        writes.write(HEAD)
        assert transport.done == []
        await asyncio.sleep(0)
        assert transport.done == [HEAD]

    asyncio.run(run())


def test_two_answers_in_a_row_stay_whole_and_in_order() -> None:
    async def run() -> None:
        transport, writes = await joined()
        for data in (HEAD, b"one", HEAD, b"two"):
            writes.write(data)
        await asyncio.sleep(0)
        assert transport.done == [HEAD + b"one", HEAD + b"two"]

    asyncio.run(run())


def test_closing_writes_the_head_before_and_everything_else_is_the_transports() -> None:
    async def run() -> None:
        transport, writes = await joined()
        writes.write(HEAD)
        assert not writes.is_closing()
        writes.close()
        assert transport.done == [HEAD, "closed"]
        assert writes.is_closing()

    asyncio.run(run())
