"""Replicas without a Ray cluster: what Serve is told, how one starts and answers; how a Ray is joined."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from uvicorn import Config
from uvicorn.lifespan.on import LifespanOn

from service import ray_cluster
from service.front.app import bound_socket
from service.front.machine import CoreClaims
from service.front.settings import Settings
from service.machine import pin
from service.ray_cluster import (
    FIRST_CALL,
    STARTS,
    TOO_SLOW,
    ClusterError,
    connected,
    environment,
    is_loopback,
)
from tests.support.processes import without
from tests.support.serving import BODY, PATIENCE_SECONDS, fake_engine_command

try:
    import grpc

    from service import replicas as module
    from service.replicas import (
        NotStarted,
        Replica,
        bound_at,
        claimed,
        deployment_options,
        free_port,
        own_listener,
        replica_count,
        share_of_each,
    )
except ModuleNotFoundError:
    without("Ray is not installed: pip install -e '.[ray]'")

GENERATE = "/v1/modes/eager/generate"
CORES = [910, 911, 912]
"""No machine's: other tests run services meanwhile."""


@pytest.mark.parametrize("text", ["0", "0-2", "3-1", "-1", "two", "1-", "1001", "1-2-3", ""])
def test_a_count_is_a_number_or_two_and_anything_else_is_refused_with_what_to_write(text: str) -> None:
    assert [replica_count(one) for one in ("4", "1-4", " 2-2 ")] == [(4, 4), (1, 4), (2, 2)]
    with pytest.raises(ValueError, match="give a number from 1 to 1000, or two as 1-4"):
        replica_count(text)


def test_serve_is_told_the_number_the_cores_and_the_time_of_the_longest_request() -> None:
    settings = Settings(request_timeout_seconds=300.0, drain_seconds=7.0, max_queue=100)
    fixed, scaled = (deployment_options(settings, (1, most), 2, most > 1) for most in (1, 4))
    assert (fixed["num_replicas"], "autoscaling_config" in fixed) == (1, False)
    scaling = {"min_replicas": 1, "initial_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 5}
    assert (scaled["autoscaling_config"], "num_replicas" in scaled) == (scaling, False)
    assert fixed["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 0}
    assert scaled["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 1}
    # A full queue is refused by the replica and not by Serve.
    assert fixed["max_ongoing_requests"] > 100
    assert fixed["graceful_shutdown_timeout_s"] > 307.0


@pytest.mark.parametrize(
    ("device", "wanted", "replicas", "resources", "share"),
    [
        ("cpu", None, 1, {"CPU": 2.0}, (2, False)),
        ("cpu", None, 2, {"CPU": 2.0}, (1, False)),
        ("cpu", 4, 4, {"CPU": 16.0, "GPU": 8.0}, (4, False)),
        ("auto", None, 2, {"CPU": 16.0}, (2, False)),
        ("auto", None, 2, {"CPU": 16.0, "GPU": 2.0}, (2, True)),
        ("cuda", None, 2, {"CPU": 2.0}, "Ray has 0 GPUs: ask for fewer, or serve with --device cpu"),
        ("cuda:1", None, 1, {"CPU": 2.0, "GPU": 2.0}, "Ray chooses each replica's GPU; use --device cuda"),
        ("cpu", None, 3, {"CPU": 2.0}, "there are 2: ask for fewer by --replicas or --replica-cpus"),
    ],
)
def test_each_has_two_cores_where_there_are_so_many_and_a_gpu_where_it_runs_on_one(
    device: str, wanted: int | None, replicas: int, resources: dict[str, float], share: tuple[int, bool] | str
) -> None:
    settings = Settings(device=device)
    if isinstance(share, str):
        with pytest.raises(ValueError, match=share):
            share_of_each(settings, wanted, replicas, resources)
    else:
        assert share_of_each(settings, wanted, replicas, resources) == share


def test_a_port_that_is_taken_is_refused_with_the_remedy() -> None:
    with bound_socket("127.0.0.1", 0) as taken, pytest.raises(ValueError, match="choose another --port"):
        free_port("127.0.0.1", taken.getsockname()[1])


def test_replicas_listen_at_the_ports_that_follow_the_proxys() -> None:
    with bound_socket("127.0.0.1", 0) as proxy:
        port = proxy.getsockname()[1]
        with own_listener("127.0.0.1", port, 0) as first, own_listener("127.0.0.1", port, 0) as second:
            found = [one.getsockname()[1] for one in (first, second)]
    assert port < found[0] < found[1] < port + 100
    with own_listener("127.0.0.1", 65_535, 0) as any_port:
        assert any_port.getsockname()[1] != 65_535


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


@pytest.fixture(autouse=True)
def _as_on_a_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What Ray says of a replica, and cores as before."""
    monkeypatch.setattr(module, "where_and_who", lambda: ("127.0.0.1", "r1"))
    before = sorted(os.sched_getaffinity(0))
    yield
    pin(before)


class Started(NamedTuple):
    """A replica that is ready, its way by the proxy and its own."""

    front: Replica
    proxy: httpx.AsyncClient
    own: httpx.AsyncClient


async def start(
    front: Replica, folder: Path, settings: dict[str, Any] | None = None, **engine: object
) -> None:
    """As Serve makes it."""
    given = {"modes": ["eager"], "batch_sizes": [1], "drain_seconds": 1.0, "cache_folder": folder, "port": 0}
    await front.__init__(Settings(**{**given, **(settings or {})}), 1, fake_engine_command(**engine))


@asynccontextmanager
async def started(folder: Path, settings: dict[str, Any] | None = None) -> AsyncIterator[Started]:
    """As Serve has it: started, then the lifespan until the end."""
    front = Replica.__new__(Replica)
    await start(front, folder, settings)
    app = front.__serve_build_asgi_app__()
    lifespan = LifespanOn(Config(app, lifespan="on", log_config=None))
    await lifespan.startup()
    options = {"timeout": PATIENCE_SECONDS, "trust_env": False}
    by_proxy = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", **options)
    own = httpx.AsyncClient(base_url=f"http://{front.address}", **options)
    async with by_proxy, own:
        try:
            yield Started(front, by_proxy, own)
        finally:
            await lifespan.shutdown()


async def without_engine(front: Replica) -> None:
    os.kill(front._state.supervisor.pid, signal.SIGKILL)
    while front._state.client.engine is not None:
        await asyncio.sleep(0)


def is_free(cores: list[int]) -> bool:
    claim = CoreClaims(cores, of="replica")
    claim.close()
    return claim.held and not claim.shared


@pytest.mark.slow
def test_it_has_a_core_of_its_own_and_answers_both_ways(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with started(tmp_path) as one:
            by_proxy = await one.proxy.post(GENERATE, json=BODY, headers={"X-Request-ID": "a-1"})
            assert (by_proxy.status_code, by_proxy.headers["x-launchbound-replica"]) == (200, "r1")
            assert by_proxy.headers["x-content-type-options"] == "nosniff"
            # The proxy returns the id that it handed on; two would be joined to one that nobody sent.
            assert "x-request-id" not in by_proxy.headers
            assert by_proxy.json()["id"] == "a-1"
            malformed = await one.proxy.post("/none", json=BODY, headers={"X-Request-ID": 'a b"c'})
            assert "x-request-id" not in malformed.headers
            own = await one.own.post(GENERATE, json=BODY, headers={"X-Request-ID": "a-2"})
            assert (own.status_code, own.headers["x-request-id"]) == (200, "a-2")
            assert "x-launchbound-replica" not in own.headers
            await one.front.check_health()
            assert len(one.front.cores) == 1
            assert not is_free(one.front.cores)
            of_another_service = CoreClaims(one.front.cores)
            assert of_another_service.shared == one.front.cores
            return one.front.cores

    assert is_free(asyncio.run(run()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (
            {"exit": 2, "says": "launchbound engine: no model 'none': name a folder\n[W] a last word"},
            "^no model 'none': name a folder$",
        ),
        (
            {"states": {"eager": "failed"}, "detail": "CppCompileError: g++ failed\nwith 1"},
            r"^eager failed \(CppCompileError: g\+\+ failed\\nwith 1\)",
        ),
    ],
)
def test_an_engine_that_refuses_its_settings_or_fails_its_modes_ends_the_start_with_its_words(
    engine: dict[str, object], reason: str, tmp_path: Path
) -> None:
    async def run() -> None:
        front = Replica.__new__(Replica)
        with pytest.raises(NotStarted, match=reason):
            await start(front, tmp_path, **engine)
        assert is_free(front.cores)
        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient(trust_env=False).get(f"http://{front.address}/health/live")

    asyncio.run(run())


@pytest.mark.slow
def test_a_request_without_the_key_is_refused_and_not_held_while_an_engine_starts(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(tmp_path, {"api_key": "secret"}) as one:
            one.front._state.supervisor.first_retry_seconds = 3600.0
            await without_engine(one.front)
            for key in ({}, {"Authorization": "Bearer wrong"}):
                assert (await one.proxy.post(GENERATE, json=BODY, headers=key)).status_code == 401
            given = {"Authorization": "Bearer secret"}
            held = asyncio.create_task(one.proxy.post(GENERATE, json=BODY, headers=given))
            assert (await one.proxy.post(GENERATE, json=BODY)).status_code == 401
            assert not held.done()
            held.cancel()

    asyncio.run(run())


@pytest.mark.slow
def test_a_request_by_the_proxy_waits_for_the_next_engine_and_one_to_itself_is_refused(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with started(tmp_path) as one:
            await without_engine(one.front)
            refused = await one.own.post(GENERATE, json=BODY)
            with pytest.raises(RuntimeError, match="signal 9"):
                await one.front.check_health()
            held = await one.proxy.post(GENERATE, json=BODY)
            await one.front.check_health()
            assert (refused.status_code, held.status_code) == (503, 200)
            assert one.front._state.supervisor.starts == 2

    asyncio.run(run())


def claim(count: int) -> dict[int, CoreClaims]:
    return asyncio.run(claimed(count, CORES, wait_seconds=0.0))


def give_back(claims: dict[int, CoreClaims]) -> None:
    for one in claims.values():
        one.close()


def test_replicas_get_different_cores_wait_for_those_given_back_and_else_name_the_remedy() -> None:
    first, others = claim(1), claim(2)
    assert (list(first), list(others)) == ([910], [911, 912])
    give_back(first)
    with pytest.raises(NotStarted, match="--replica-cpus"):
        claim(2)

    async def given_back() -> dict[int, CoreClaims]:
        asyncio.get_running_loop().call_later(0.05, give_back, others)
        return await claimed(3, CORES, wait_seconds=30.0)

    again = asyncio.run(given_back())
    assert list(again) == CORES
    give_back(again)


# Joining or starting a Ray: with its token where it asks for one, and refused at once where it cannot be


@contextmanager
def head(token: str | None, asked: str = FIRST_CALL) -> Iterator[str]:
    """The address of what answers as the head of a cluster does, one with `token` to whoever shows it."""

    def answer(_: bytes, context: Any) -> bytes:
        shown = dict(context.invocation_metadata()).get("authorization")
        if token is not None and shown != f"Bearer {token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
        return b""

    service, _, method = asked.removeprefix("/").partition("/")
    handler = grpc.unary_unary_rpc_method_handler(answer)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def test_a_token_is_shown_to_a_cluster_that_asks_for_one_and_to_no_other() -> None:
    with head("secret") as address:
        assert environment(address)["RAY_AUTH_MODE"] == "token"
    with head(None) as address:
        assert environment(address)["RAY_AUTH_MODE"] == "disabled"
        assert environment(address)["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert environment(None)["RAY_AUTH_MODE"] == "token"
    assert "RAY_AUTH_MODE" not in environment("auto")


def test_an_address_other_than_loopback_is_refused_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.3.2.1", "::1"))
    assert not any(is_loopback(host) for host in ("10.0.0.1", "0.0.0.0", "head.example", ""))
    monkeypatch.setattr(ray_cluster, "is_loopback", lambda _: False)
    with head("secret") as address:
        assert environment(address)["RAY_AUTH_MODE"] == "token"
    with head(None) as address, pytest.raises(ClusterError, match=r"runs without a token.*start it with one"):
        environment(address)


def test_an_address_at_which_nothing_or_no_ray_answers_is_refused_at_once() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"no Ray answers at {address} .*leave out --address"):
            environment(address)
    with (
        head(None, "/another/Service") as address,
        pytest.raises(ClusterError, match=r"no Ray answers .*\(unimplemented\)"),
    ):
        environment(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://10.0.0.1:6379", "10.0.0.1:", ":x", "local"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ClusterError, match="give HOST:PORT, or auto"):
        environment(address)


@pytest.mark.parametrize("address", [None, "auto"])
def test_ray_sends_no_statistics_and_leaves_out_no_line_of_the_log_by_default(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_DEDUP_LOGS", raising=False)
    assert environment(address)["RAY_DEDUP_LOGS"] == "0"
    assert environment(address)["RAY_USAGE_STATS_ENABLED"] == "0"
    monkeypatch.setenv("RAY_DEDUP_LOGS", "1")
    assert environment(address)["RAY_DEDUP_LOGS"] == "1"


@pytest.mark.parametrize(("said", "starts"), [(f"the node {TOO_SLOW}", STARTS), ("a port is taken", 1)])
def test_a_ray_that_was_too_slow_is_started_again_and_one_with_another_fault_is_not(
    said: str, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, count = tmp_path / "fails.py", tmp_path / "starts"
    program.write_text(f"open({str(count)!r}, 'a').write('x')\nprint({said!r})\nraise SystemExit(1)\n")
    monkeypatch.setattr(ray_cluster, "__file__", str(program))
    with pytest.raises(ClusterError, match=f"^Ray did not start: {said}$"), connected(None):
        pass
    assert len(count.read_text()) == starts
