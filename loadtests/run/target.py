"""The service under test over plain HTTP: its modes, event streams and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from prometheus_client.parser import text_string_to_metric_families

COMPILE_COUNTERS = (
    "launchbound_recompiles_total", "launchbound_graph_breaks_total", "launchbound_compile_seconds_count",
)  # fmt: skip


REPLICA_HEADER = "X-Launchbound-Replica"
"""Of answers that came through Ray Serve's proxy: the name of the replica that answered."""


def linear_layout(engine: Mapping[str, Any]) -> str | None:
    """How linear weights lie in the memory of `engine`, of GET /v1/modes; None where they are not laid out.

    What candidates took when it was chosen stands beside it, and differs from start to start.
    """
    layout: str | None = (engine.get("linears") or {}).get("layout")
    return layout


class TargetError(RuntimeError):
    """The service cannot be used for a sweep; the message names the remedy."""


class ModeFailed(TargetError):
    """A mode of the plan failed or is out of parity: a failed check, not a usage error."""


class RequestRefused(TargetError):
    """The service returned an error; `status` is its code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(TargetError):
    """No connection to the address."""


class Target:
    """A running service at `url`; `api_key` is sent as a bearer token."""

    def __init__(self, url: str, api_key: str | None = None, timeout_seconds: float = 10.0) -> None:
        """Raises TargetError where `url` is not an HTTP address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise TargetError(f"'{url}' is not an address: give it as http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_seconds = timeout_seconds
        # Measure the direct connection, never a proxy.
        self._opener = build_opener(ProxyHandler({}))

    @property
    def is_local(self) -> bool:
        """Whether the service is on this machine, so that what this machine shows is true of it."""
        return urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of GET `path`, made now; an error is returned, not raised. Raises Unreachable."""
        headers = {**self.headers, "Cache-Control": "no-cache"}
        return self._answer(Request(self.url + path, headers=headers), self._timeout_seconds)

    def replica(self) -> str | None:
        """The replica that a proxy had answer just now; None where the address is one service's own."""
        try:
            with self._opener.open(self.url + "/health/live", timeout=self._timeout_seconds) as response:
                return str(name) if (name := response.headers.get(REPLICA_HEADER)) else None
        except HTTPError as error:
            return error.headers.get(REPLICA_HEADER)
        except (URLError, OSError) as error:
            raise self._unreachable(error) from error

    def post(self, path: str, body: Mapping[str, object], timeout_seconds: float) -> tuple[int, str]:
        """Status and body of POST `path` with `body` as JSON, as `get`."""
        headers = {**self.headers, "Content-Type": "application/json"}
        return self._answer(Request(self.url + path, json.dumps(body).encode(), headers), timeout_seconds)

    def _answer(self, request: Request, timeout_seconds: float) -> tuple[int, str]:
        try:
            with self._opener.open(request, timeout=timeout_seconds) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except (URLError, OSError) as error:
            raise self._unreachable(error) from error

    def stream(self, path: str, body: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
        """The events of POST `path` with `body` as JSON, (name, data) each, as they arrive.

        Raises RequestRefused for an error status, Unreachable without a response or where it breaks off.
        """
        headers = {**self.headers, "Content-Type": "application/json"}
        request = Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as response:
                yield from _events(response)
        except HTTPError as error:
            raise RequestRefused(error.code, _message(error.read().decode(errors="replace"))) from error
        except (URLError, OSError, HTTPException) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = getattr(error, "reason", error)
        return Unreachable(f"nothing answers at {self.url} ({reason}): start the service")

    def modes(self) -> dict[str, Any]:
        """The document of GET /v1/modes. Raises TargetError where it is refused or malformed."""
        status, body = self.get("/v1/modes")
        if status == 401:
            raise TargetError(f"{self.url} requires an API key: set LAUNCHBOUND_API_KEY to the service's key")
        document = _json(body)
        if status == 200 and isinstance(document, dict) and isinstance(document.get("modes"), list):
            return document
        raise TargetError(f"GET {self.url}/v1/modes answered {status} {body[:200]!r}: is this a launchbound?")

    def metrics(self) -> str:
        """The text of GET /metrics. Raises TargetError for any other status than 200."""
        status, body = self.get("/metrics")
        if status != 200:
            raise TargetError(f"GET {self.url}/metrics answered {status}: {body[:200]!r}")
        return body


def _events(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    """Server-sent events from their lines; ours have one line of JSON each."""
    name = ""
    for line in lines:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def _message(body: str) -> str:
    """The service's error message, or the start of the body without one."""
    document = _json(body)
    error = document.get("error") if isinstance(document, dict) else None
    return str(error["message"]) if isinstance(error, dict) and error.get("message") else body[:200]


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def samples(metrics_text: str, *names: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Values of the samples called one of `names`, by (name, labels)."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics_text)
        for sample in family.samples
        if sample.name in names
    }


def compile_counters(metrics_text: str) -> dict[str, float]:
    """The compilation counters, summed over modes."""
    totals: dict[str, float] = {}
    for (name, _), value in samples(metrics_text, *COMPILE_COUNTERS).items():
        totals[name] = totals.get(name, 0.0) + value
    return totals


def requests_by_mode(metrics_text: str) -> dict[str, dict[str, float]]:
    """`launchbound_requests_total` as {mode: {outcome: count}}."""
    counts: dict[str, dict[str, float]] = {}
    for (_, labels), value in samples(metrics_text, "launchbound_requests_total").items():
        named: Mapping[str, str] = dict(labels)
        counts.setdefault(named.get("mode", ""), {})[named.get("outcome", "")] = value
    return counts
