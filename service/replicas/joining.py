"""Before a Ray that somebody else has started is joined: whether it answers, and whether by a token.

Ray tries an address at which nothing answers for minutes and then ends the process. To an address it shows
its token only where RAY_AUTH_MODE says so; where a Ray without a token is joined with one, nodes cannot call
back, and their streams never end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 10.0

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
ASKED = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""What Ray itself calls first. Its request is a message without fields that have to be."""

OF_ITS_HEAD = (
    "copy ~/.ray/auth_token of the node where `ray start --head` ran to this user's home, or set "
    "RAY_AUTH_TOKEN to what it holds"
)


class NotJoined(RuntimeError):
    """Ray at an address cannot be joined; the message has the remedy."""


def joining(address: str) -> dict[str, str]:
    """What a process that joins Ray at `address` has set beside when it imports it.

    Of `auto` nothing: Ray finds the address, and shows the token where there is one. Raises NotJoined, and
    ModuleNotFoundError without the package of the extra `ray`.
    """
    if address == "auto":
        return {}
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        raise NotJoined(f"{address} is no address of a Ray cluster: give HOST:PORT, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise NotJoined(
            f"nothing answers at {address} ({error}): start Ray there by `ray start --head`, give the "
            "address that it prints, or leave out --address"
        ) from error
    if os.environ.get("RAY_USE_TLS", "0") not in ("0", "false"):
        return {}  # asked without its certificate, it would not answer
    return _mode(address)


def _mode(address: str) -> dict[str, str]:
    mode = os.environ.get(MODE, "").lower()
    if _accepts(address, None):
        if mode == "token":
            raise NotJoined(
                f"Ray at {address} runs without a token, and {MODE}=token is set: leave it out, or start "
                "that Ray with it"
            )
        return {}
    if mode not in ("", "token"):
        raise NotJoined(f"Ray at {address} asks for a token, and {MODE}={mode} is set: leave it out")
    if (token := _token()) is None:
        raise NotJoined(f"Ray at {address} asks for a token, and there is none here: {OF_ITS_HEAD}")
    if not _accepts(address, token):
        raise NotJoined(f"Ray at {address} asks for another token than the one here: {OF_ITS_HEAD}")
    return {MODE: "token"}


def _token() -> str | None:
    """The one that Ray would show, from where it would read it."""
    if token := os.environ.get(TOKEN, "").strip():
        return token
    path = os.environ.get(TOKEN_PATH) or os.path.expanduser("~/.ray/auth_token")
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None


def _accepts(address: str, token: str | None) -> bool:
    """Whether Ray answers who shows this token, None: shows none. Raises NotJoined where it is no Ray."""
    import grpc

    shown: Sequence[tuple[str, str]] = [] if token is None else [("authorization", f"Bearer {token}")]
    # As Ray does: a proxy for the web is not asked for its nodes.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask: Any = channel.unary_unary(ASKED)
        try:
            ask(b"", timeout=ANSWER_SECONDS, metadata=shown)
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.UNAUTHENTICATED:
                return False
            raise NotJoined(
                f"what answers at {address} is no Ray ({code.name.lower()}): give the address that "
                "`ray start --head` prints, or leave out --address"
            ) from error
    return True
