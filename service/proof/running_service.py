"""The service that the checks over HTTP send requests to: its start, its connections, its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from loadtests.run.placement import off_cores
from loadtests.run.readiness import await_modes
from loadtests.run.target import Target, Unreachable
from service.front.launch import launched
from service.front.settings import Settings
from service.measure.rounds import Log
from service.proof.bare_engine import NEW_TOKENS, PROMPT

WITHOUT_PROGRESS_SECONDS = 600.0


class ServiceFailed(RuntimeError):
    """The service refused a request; the message has the reason."""


class Connection:
    """One kept-alive connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._http = HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body, made for this request."""
        self._http.request("GET", path, headers={"Cache-Control": "no-cache"})
        response = self._http.getresponse()
        return response.status, response.read()

    def generate(self, mode: str, new_tokens: int = NEW_TOKENS, sample: bool = False) -> dict[str, Any]:
        """The timings of one request, with the client's own `latency_seconds`. Raises ServiceFailed."""
        answer, latency = self.answer(mode, new_tokens, sample)
        timings: dict[str, Any] = json.loads(answer)["timings"]
        return {**timings, "latency_seconds": latency}

    def answer(self, mode: str, new_tokens: int = NEW_TOKENS, sample: bool = False) -> tuple[bytes, float]:
        """The body of one answer, and the client's latency in seconds. Raises ServiceFailed."""
        asked = {"prompts": [PROMPT], "max_new_tokens": new_tokens, "ignore_eos": True}
        body = json.dumps(asked | {"sample": True} if sample else asked)
        began = perf_counter()
        self._http.request("POST", f"/v1/modes/{mode}/generate", body, {"Content-Type": "application/json"})
        response = self._http.getresponse()
        text = response.read()
        latency = perf_counter() - began
        if response.status != 200:
            raise ServiceFailed(f"{mode} returned {response.status}: {text[:200].decode(errors='replace')}")
        return text, latency

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


@dataclass(frozen=True, slots=True)
class RunningService:
    """A warm service; `cpus` are its engine's cores."""

    url: str
    modes: list[str]
    batch_sizes: list[int]
    cpus: list[int]

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A new connection; threads must not share one."""
        connection = Connection(self.url)
        try:
            yield connection
        finally:
            connection.close()


def service_flags(settings: Settings) -> Sequence[str]:
    """The command line's flags for `settings`, as far as the checks depend on them."""
    given = {
        "model": settings.model,
        "device": settings.device,
        "dtype": settings.dtype,
        "modes": ",".join(settings.modes),
        "batch_sizes": ",".join(map(str, settings.batch_sizes)),
    }
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value]


@contextmanager
def running_service(settings: Settings, log_file: Path, log: Log) -> Iterator[RunningService]:
    """Start a service, wait until it is warm, keep off its engine's cores, end it with the block.

    Raises TargetError where it does not become ready, and LaunchError where it does not start or has ended.
    """
    environment = {"LAUNCHBOUND_CACHE_FOLDER": str(settings.cache_folder), "LAUNCHBOUND_API_KEY": None}
    lost = (ConnectionError, Unreachable)
    with launched(service_flags(settings), log_file, environment, lost=lost) as url:
        ready = await_modes(Target(url), settings.modes, log, WITHOUT_PROGRESS_SECONDS, settled=True)
        cpus = ready["engine"]["cpus"]
        with off_cores(cpus):
            yield RunningService(url, settings.modes, settings.batch_sizes, cpus)
