"""Bodies that go along with their request, and those that are left to be called for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.replicas.body_ahead import BODY, BodyAhead, with_body

GONE: Message = {"type": "http.disconnect"}


def part(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def unsent(message: Message) -> None:
    """Goes nowhere."""


def through(scope: Scope, *messages: Message, late: float = 0.0) -> tuple[bool, list[Message]]:
    """Whether the body went along, and what an app behind proxy and replica receives up to the disconnect.

    The first of `messages` comes `late` seconds after the request; after the last the client is silent.
    """
    coming = list(messages)
    seen = list[Any]()

    async def receive() -> Message:
        if late and len(coming) == len(messages):
            await asyncio.sleep(late)
        return coming.pop(0)

    async def replica(scope: Scope, receive: Receive, _: Send) -> None:
        seen.append(BODY in scope)
        receive = with_body(scope, receive)
        assert BODY not in scope
        received = [await receive()]
        while received[-1] != GONE:
            received.append(await receive())
        seen.append(received)

    asyncio.run(BodyAhead(replica)(scope, receive, unsent))
    assert not coming
    along, received = seen
    return along, received


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_body_that_is_there_goes_along(method: str) -> None:
    messages = [part(b"{}" if method == "POST" else b""), GONE]
    assert through({"type": "http", "method": method}, *messages) == (True, messages)


def test_a_body_in_parts_is_called_for_and_whole() -> None:
    messages = [part(b"{", more=True), part(b"}"), GONE]
    assert through({"type": "http"}, *messages) == (False, messages)


def test_a_late_body_is_left_to_the_replica_s_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.replicas.body_ahead.PATIENCE_SECONDS", 0.001)
    messages = [part(b"{}"), GONE]
    assert through({"type": "http"}, *messages, late=0.05) == (False, messages)


def test_a_client_that_goes_before_its_body_is_told_of() -> None:
    assert through({"type": "http"}, GONE) == (False, [GONE])


def test_a_request_by_a_proxy_that_knows_nothing_of_this_is_received_as_it_comes() -> None:
    async def receive() -> Message:
        return part(b"{}")

    assert with_body({"type": "http"}, receive) is receive


def test_the_lifespan_s_messages_are_not_taken() -> None:
    async def run() -> list[Any]:
        seen = list[Any]()

        async def receive() -> Message:
            raise AssertionError("the app asks for it")

        async def app(scope: Scope, given: Receive, _: Send) -> None:
            seen.extend([scope, given is receive])

        await BodyAhead(app)({"type": "lifespan"}, receive, unsent)
        return seen

    assert asyncio.run(run()) == [{"type": "lifespan"}, True]
