"""A small HTTP client with one connection that stays open, and the request that all servers are sent."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from loadtests.peers.process import RivalError

TIMEOUT_SECONDS = 300.0

IDLE_SECONDS = 2.0
"""A connection that was idle for longer is opened anew: uvicorn closes its own after 5 s."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's JSON, and the seconds from the first byte sent until all of it was read."""

    document: dict[str, Any]
    seconds: float


class Client:
    """One connection to `url`, opened by the first request."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            parts.hostname or "127.0.0.1", parts.port, timeout=TIMEOUT_SECONDS
        )
        self._used = 0.0
        self._headers = {"Content-Type": "application/json", **(headers or {})}

    def post(self, path: str, body: bytes) -> Answer:
        """POST `body`. Raises RivalError where the answer is not a JSON object with status 200."""
        try:
            self._connect()
            began = perf_counter()
            self._connection.request("POST", path, body, self._headers)
            response = self._connection.getresponse()
            content = response.read()
            self._used = perf_counter()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise RivalError(f"no answer to POST {path}: {error}") from error
        if response.status != 200:
            raise RivalError(f"POST {path} answered {response.status}: {content[:200]!r}")
        document = json.loads(content)
        if not isinstance(document, dict):
            raise RivalError(f"POST {path} answered no object: {content[:200]!r}")
        return Answer(document, self._used - began)

    def _connect(self) -> None:
        if perf_counter() - self._used > IDLE_SECONDS:
            self._connection.close()
        if self._connection.sock is None:
            self._connection.connect()
            opened: Any = self._connection.sock
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def generate_body(prompts: Sequence[str], new_tokens: int) -> bytes:
    """The JSON that asks for `new_tokens` greedy tokens of each prompt, end of text ignored."""
    return json.dumps({"prompts": list(prompts), "max_new_tokens": new_tokens, "ignore_eos": True}).encode()
