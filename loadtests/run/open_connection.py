"""One connection to a service, which stays open between requests."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from loadtests.run.target import REPLICA_HEADER, TargetError

IDLE_SECONDS = 2.0
"""After so long a connection is opened anew: the service closes those that idle for five."""


class OpenConnection:
    """To `url`, for requests of `body` in `mode`.

    `replicas` has the names of those that a proxy had answer; None for answers without a proxy.
    """

    def __init__(self, url: str, body: dict[str, Any], mode: str, key: str | None) -> None:
        self._url = url
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._path = f"/v1/modes/{mode}/generate"
        self._body = json.dumps(body).encode()
        self._headers = {"Content-Type": "application/json"}
        self._headers |= {"Authorization": f"Bearer {key}"} if key else {}
        self._used = 0.0
        self.replicas = set[str | None]()

    def request(self) -> tuple[float, dict[str, Any]]:
        """One request: the seconds until the last byte of its answer, and the answer. Raises TargetError."""
        began = perf_counter()
        if began - self._used > IDLE_SECONDS:
            self._connection.close()
        try:
            self._connection.request("POST", self._path, self._body, self._headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as error:
            raise TargetError(f"{self._url} broke off ({error}): is the service still there?") from error
        self._used = perf_counter()
        took = self._used - began
        self.replicas.add(answer.getheader(REPLICA_HEADER))
        if answer.status != 200:
            raise TargetError(f"{self._url}{self._path} answered {answer.status}: {content[:200]!r}")
        found: dict[str, Any] = json.loads(content)
        return took, found

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
