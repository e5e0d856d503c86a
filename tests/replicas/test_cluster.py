"""Joining or starting a Ray: with its token where it asks for one, and refused at once where it cannot be."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service import ray_cluster
from service.ray_cluster import (
    FIRST_CALL,
    STARTS,
    TOO_SLOW,
    ClusterError,
    connected,
    environment,
    is_loopback,
)

grpc = pytest.importorskip("grpc", reason="Ray is not installed: pip install -e '.[ray]'")


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
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    program, count = tmp_path / "fails.py", tmp_path / "starts"
    program.write_text(f"open({str(count)!r}, 'a').write('x')\nprint({said!r})\nraise SystemExit(1)\n")
    monkeypatch.setattr(ray_cluster, "__file__", str(program))
    with pytest.raises(ClusterError, match=f"^Ray did not start: {said}$"), connected(None):
        pass
    assert len(count.read_text()) == starts
