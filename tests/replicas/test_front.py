"""A replica without Ray: what its lifespan starts and ends, and how it answers, by a proxy and directly."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn import Config
from uvicorn.lifespan.on import LifespanOn

from service.front.machine import CoreClaims
from service.front.settings import Settings
from service.machine import pin
from service.replicas.front import NotStarted, ReplicaFront, bound_at
from tests.support.serving import BODY, PATIENCE_SECONDS, fake_engine_command

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _cores_as_before() -> Iterator[None]:
    before = sorted(os.sched_getaffinity(0))
    yield
    pin(before)


@dataclass
class Started:
    """A replica that is ready, its way by the proxy and its own; `ended`: it has said so."""

    front: ReplicaFront
    proxy: httpx.AsyncClient
    own: httpx.AsyncClient
    ended: list[str] = field(default_factory=list)


def made(folder: Path, settings: dict[str, Any] | None, ended: list[str], **engine: object) -> ReplicaFront:
    async def says_so() -> None:
        ended.append("ended")

    given = {"modes": ["eager"], "batch_sizes": [1], "drain_seconds": 1.0, "cache_folder": folder}
    chosen = Settings(**{**given, **(settings or {})})
    return ReplicaFront(chosen, 1, "127.0.0.1", "r1", says_so, fake_engine_command(**engine))


@asynccontextmanager
async def started(
    folder: Path, settings: dict[str, Any] | None = None, **engine: object
) -> AsyncIterator[Started]:
    """As Serve has it: started, then the lifespan until the end."""
    ended = list[str]()
    front = made(folder, settings, ended, **engine)
    await front.start()
    lifespan = LifespanOn(Config(front, lifespan="on", log_config=None))
    await lifespan.startup()
    options = {"timeout": PATIENCE_SECONDS, "trust_env": False}
    by_proxy = httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://127.0.0.1", **options)
    own = httpx.AsyncClient(base_url=f"http://{front.address}", **options)
    async with by_proxy, own:
        try:
            yield Started(front, by_proxy, own, ended)
        finally:
            await lifespan.shutdown()


def test_it_is_complete_when_every_mode_is_ready_and_answers_both_ways(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as one:
            by_proxy = await one.proxy.post(
                "/v1/modes/eager/generate", json=BODY, headers={"X-Request-ID": "a-1"}
            )
            assert (by_proxy.status_code, by_proxy.headers["x-launchbound-replica"]) == (200, "r1")
            assert by_proxy.headers["x-content-type-options"] == "nosniff"
            # The proxy returns the id that it handed on; two of them would be joined to one that nobody sent.
            assert "x-request-id" not in by_proxy.headers
            assert by_proxy.json()["id"] == "a-1"
            own = await one.own.post("/v1/modes/eager/generate", json=BODY, headers={"X-Request-ID": "a-2"})
            assert (own.status_code, own.headers["x-request-id"]) == (200, "a-2")
            assert "x-launchbound-replica" not in own.headers
            one.front.check()
        assert one.ended == ["ended"]

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/v1/modes/eager/generate", "/none"])
def test_a_malformed_id_is_left_to_the_proxy_too_which_returns_it(path: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path) as one:
            answer = await one.proxy.post(path, json=BODY, headers={"X-Request-ID": 'a b"c'})
            assert "x-request-id" not in answer.headers
            own = await one.own.post(path, json=BODY, headers={"X-Request-ID": 'a b"c'})
            assert len(own.headers.get_list("x-request-id")) == 1

    asyncio.run(run())


def test_its_cores_are_claimed_while_it_lives(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with started(tmp_path) as one:
            taken = CoreClaims(one.front.cores, of="replica")
            assert (len(one.front.cores), taken.shared) == (1, one.front.cores)
            taken.close()
            return one.front.cores

    again = CoreClaims(asyncio.run(run()), of="replica")
    assert again.held
    again.close()


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (
            {"exit": 2, "says": "launchbound engine: no model 'none': name a folder"},
            "^no model 'none': name a folder$",
        ),
        ({"states": {"eager": "failed"}}, "^mode eager failed: "),
    ],
)
def test_an_engine_that_refuses_its_settings_or_fails_its_modes_ends_the_start_with_what_it_says(
    engine: dict[str, object], reason: str, tmp_path: Path
) -> None:
    async def run() -> None:
        front = made(tmp_path, None, [], **engine)
        with pytest.raises(NotStarted, match=reason):
            await front.start()
        again = CoreClaims(front.cores, of="replica")
        assert again.held
        again.close()
        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient(trust_env=False).get(f"http://{front.address}/health/live")

    asyncio.run(run())


def test_a_request_without_the_key_is_refused_and_not_held_while_an_engine_starts(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path, {"api_key": "secret"}) as one:
            state = one.front._state
            state.supervisor.deaths.first_retry_seconds = 3600.0
            os.kill(state.supervisor.pid, signal.SIGKILL)
            while state.client.engine is not None:
                await asyncio.sleep(0)
            for key in ({}, {"Authorization": "Bearer wrong"}):
                refused = await one.proxy.post("/v1/modes/eager/generate", json=BODY, headers=key)
                assert refused.status_code == 401
            given = {"Authorization": "Bearer secret"}
            held = asyncio.create_task(one.proxy.post("/v1/modes/eager/generate", json=BODY, headers=given))
            refused = await one.proxy.post("/v1/modes/eager/generate", json=BODY)
            assert refused.status_code == 401
            assert not held.done()
            held.cancel()

    asyncio.run(run())


def test_a_request_by_the_proxy_waits_for_the_next_engine_and_one_to_itself_is_told_to_retry(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with started(tmp_path) as one:
            state = one.front._state
            os.kill(state.supervisor.pid, signal.SIGKILL)
            while state.client.engine is not None:
                await asyncio.sleep(0)
            refused = await one.own.post("/v1/modes/eager/generate", json=BODY)
            held = await one.proxy.post("/v1/modes/eager/generate", json=BODY)
            assert (refused.status_code, held.status_code) == (503, 200)
            assert state.supervisor.starts == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "bound"),
    [
        ("127.0.0.1", ("127.0.0.1", "127.0.0.1")),
        ("localhost", ("localhost", "localhost")),
        ("0.0.0.0", ("0.0.0.0", "10.0.0.7")),
        ("10.0.0.1", ("10.0.0.7", "10.0.0.7")),
    ],
)
def test_a_replica_listens_where_its_own_node_is_reached(host: str, bound: tuple[str, str]) -> None:
    assert bound_at(host, "10.0.0.7") == bound
