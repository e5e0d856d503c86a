"""When a replica is replaced, which cores it gets, and how it learns of a client that hangs up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.front.machine import CoreClaims
from service.front.settings import Settings
from service.replicas import front as module
from service.replicas.front import NotStarted, ReplicaFront, Unhealthy, claimed, told_of_hang_up

CORES = [910, 911, 912]
"""No machine's: other tests run services meanwhile."""

CONFIGURED = ["eager", "compiled"]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "monotonic", found)
    return found


def state(required: list[str] | None = None, **states: str) -> Any:
    """A front's state with these modes, of which some are `required`; without any its engine is down."""
    modes = {
        name: SimpleNamespace(mode=name, state=state, detail="it broke") for name, state in states.items()
    }
    client = SimpleNamespace(
        draining=False,
        configured=CONFIGURED,
        engine=SimpleNamespace(warm=True) if states else None,
        modes=modes,
        down_reason="the engine ended by signal 9",
        retry_after_seconds=5,
        ready_modes=lambda: [name for name, state in states.items() if state == "ready"],
    )
    return SimpleNamespace(
        client=client,
        supervisor=SimpleNamespace(unhealthy_reason=None),
        settings=SimpleNamespace(require_modes=required),
    )


def front(found: Any) -> ReplicaFront:
    """A replica in the state `found`, which was not started."""

    async def ended() -> None:
        """Nothing to do."""

    replica = ReplicaFront(Settings(), 1, "127.0.0.1", "r1", ended)
    replica._socket.close()
    replica._state = found
    return replica


def test_an_engine_that_starts_anew_has_a_minute_or_twice_its_first_start(clock: Clock) -> None:
    for patience in (60.0, 400.0):
        replica = front(state())
        replica._patience_seconds = patience
        replica.check()
        clock.now += patience - 1
        replica.check()
        clock.now += 1
        with pytest.raises(Unhealthy, match=f"not ready for {patience:.0f} s: the engine ended by signal 9"):
            replica.check()


def test_a_front_that_became_ready_meanwhile_begins_anew(clock: Clock) -> None:
    replica = front(state())
    replica.check()
    for found in (state(eager="ready", compiled="ready"), state()):
        clock.now += 59
        replica._state = found
        replica.check()


def test_engines_that_keep_ending_are_a_fault_at_once() -> None:
    found = state()
    found.supervisor.unhealthy_reason = "the engine ended 5 times within 15 minutes"
    with pytest.raises(Unhealthy, match="ended 5 times"):
        front(found).check()


def test_a_mode_that_is_not_required_and_a_front_that_shuts_down_replace_no_replica(clock: Clock) -> None:
    ending = state()
    ending.client.draining = True
    for found in (
        state(eager="ready", compiled="failed"),
        state(["eager"], eager="ready", compiled="failed"),
        ending,
    ):
        replica = front(found)
        replica.check()
        clock.now += 1000
        replica.check()


def claim(count: int) -> tuple[list[int], list[CoreClaims]]:
    return asyncio.run(claimed(count, CORES, wait_seconds=0.0))


def give_back(claims: list[CoreClaims]) -> None:
    for one in claims:
        one.close()


def test_replicas_get_different_cores_and_what_is_not_enough_is_refused_with_the_remedy() -> None:
    (first, claims), (second, others) = claim(1), claim(2)
    assert (first, second) == ([910], [911, 912])
    give_back(claims)
    with pytest.raises(NotStarted, match="--replica-cpus"):
        claim(2)
    give_back(others)
    give_back(claim(3)[1])


def test_cores_that_are_given_back_in_time_are_waited_for() -> None:
    _, claims = claim(3)

    async def given_back() -> tuple[list[int], list[CoreClaims]]:
        asyncio.get_running_loop().call_later(0.05, give_back, claims)
        return await claimed(3, CORES, wait_seconds=30.0)

    cores, again = asyncio.run(given_back())
    assert cores == CORES
    give_back(again)


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("nothing sets it")


async def unsent(message: Message) -> None:
    """Goes nowhere."""


def test_a_cancelled_call_ends_as_after_a_disconnect() -> None:
    seen = list[Any]()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        seen.append("began")
        seen.append((await receive())["type"])
        await asyncio.sleep(0)
        seen.append("ended")

    async def run() -> None:
        call = asyncio.ensure_future(told_of_hang_up(app, {"type": "http"}, never, unsent))
        while not seen:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(run())
    assert seen == ["began", "http.disconnect", "ended"]


def test_messages_pass_and_so_does_what_the_app_raises() -> None:
    async def body() -> Message:
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"x"
        raise RuntimeError("as the app raised it")

    with pytest.raises(RuntimeError, match="as the app raised it"):
        asyncio.run(told_of_hang_up(app, {"type": "http"}, body, unsent))
