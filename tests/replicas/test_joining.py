"""Joining a Ray that is there: with its token where it asks for one, and told at once where it cannot be."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.replicas.joining import ASKED, NotJoined, joining
from service.replicas.local_ray import environment_for

grpc = pytest.importorskip("grpc", reason="Ray is not installed: pip install launchbound[ray]")


@contextmanager
def head(token: str | None, asked: str = ASKED) -> Iterator[str]:
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


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a token, and nothing said of tokens."""
    for name in ("MODE", "TOKEN", "TOKEN_PATH"):
        monkeypatch.delenv(f"RAY_AUTH_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def in_the_environment(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")


def in_a_named_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "token").write_text("secret\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "token"))


def in_the_home(home: Path, _: pytest.MonkeyPatch) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("secret")


Kept = Callable[[Path, pytest.MonkeyPatch], None]
PLACES = pytest.mark.parametrize("kept", [in_the_environment, in_a_named_file, in_the_home])


@PLACES
def test_a_token_is_shown_to_a_cluster_that_asks_for_one_wherever_it_is_kept(
    kept: Kept, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(home, monkeypatch)
    with head("secret") as address:
        assert joining(address) == {"RAY_AUTH_MODE": "token"}


@PLACES
def test_a_token_is_not_shown_to_a_cluster_without_whose_nodes_could_not_call_back(
    kept: Kept, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(home, monkeypatch)
    with head(None) as address:
        assert joining(address) == {}


@pytest.mark.parametrize(
    ("asked", "environment", "remedy"),
    [
        ("secret", {}, r"there is none here: copy ~/\.ray/auth_token of the node"),
        ("secret", {"RAY_AUTH_TOKEN": "old"}, r"another token than the one here: copy ~/\.ray/auth_token"),
        ("secret", {"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE=disabled is set: leave it out"),
        (None, {"RAY_AUTH_MODE": "token"}, "RAY_AUTH_MODE=token is set: leave it out"),
    ],
)
def test_what_is_said_of_tokens_has_to_be_that_of_the_cluster(
    asked: str | None, environment: dict[str, str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with head(asked) as address, pytest.raises(NotJoined, match=remedy):
        joining(address)


def test_an_address_at_which_nothing_answers_is_told_at_once() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(NotJoined, match=f"nothing answers at {address} .*leave out --address"):
            joining(address)


def test_what_is_no_ray_is_told_as_such() -> None:
    def hang_up() -> None:
        for _ in range(2):  # to who looks whether anything answers, and to who asks
            listener.accept()[0].close()

    with (
        head(None, "/another/Service") as address,
        pytest.raises(NotJoined, match=r"no Ray \(unimplemented\)"),
    ):
        joining(address)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        with pytest.raises(NotJoined, match=r"no Ray \(unavailable\)"):
            joining(f"127.0.0.1:{listener.getsockname()[1]}")


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://10.0.0.1:6379", "10.0.0.1:", ":x", "local"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(NotJoined, match="give HOST:PORT, or auto"):
        joining(address)


@pytest.mark.parametrize("address", [None, "auto", "127.0.0.1:6379", "10.0.0.1:6379"])
def test_ray_leaves_out_no_line_of_the_log_unless_it_was_told_to(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_DEDUP_LOGS", raising=False)
    assert environment_for(address)["RAY_DEDUP_LOGS"] == "0"
    monkeypatch.setenv("RAY_DEDUP_LOGS", "1")
    assert environment_for(address)["RAY_DEDUP_LOGS"] == "1"


def test_whoever_joins_takes_the_mode_of_tokens_from_the_cluster_alone() -> None:
    assert environment_for(None)["RAY_AUTH_MODE"] == "token"
    for address in ("auto", "127.0.0.1:6379", "10.0.0.1:6379"):
        assert "RAY_AUTH_MODE" not in environment_for(address)
    assert joining("auto") == {}
