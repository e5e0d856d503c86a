"""What a connection may take, how many there may be, and the answer to one that takes more."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.front.errors import LaunchboundError, error_body

log = logging.getLogger("launchbound.connections")

RESERVED = 32
"""Connections beside `max_connections`, for requests of health and metrics alone."""

RESERVED_HEAD_SECONDS = 1.0
"""Within which the head of such a request arrives: probes and scrapers send it at once."""

WARN_SECONDS = 60.0
"""From one warning that all connections are taken to the next, at least."""

OTHER_DESCRIPTORS = 64
"""Files that the front has open beside its connections: logs, its children's pipes and sockets."""

DESCRIPTORS_EACH = 2
"""Of a connection: its socket, and the file that it is being sent. Probes are sent none."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """For how long a head, a body, and an unread answer are waited for."""

    head_seconds: float
    body_seconds: float
    unread_seconds: float


class Placed(Protocol):
    """A connection, as `Places` sees it."""

    @property
    def silent(self) -> bool:
        """Whether it has no whole head, and nothing that it sent waits to be read."""

    def crowd_out(self) -> None:
        """Answer that there are too many connections, and close."""


class Places:
    """The places of open connections: `most` for any request, and RESERVED beside them.

    One that finds all of both taken gets the place of the reserved one that has been silent for longest:
    silent clients cannot keep a probe out, however many they are. `counted` gets the number of all, and
    `most`.
    """

    def __init__(self, most: int, counted: Callable[[int, int], None]) -> None:
        self.most = most
        self._counted = counted
        self._ordinary: set[Placed] = set()
        self._reserved: dict[Placed, None] = {}
        self._warned = -WARN_SECONDS

    def take(self, connection: Placed) -> bool:
        """A connection was made. Returns whether it has a reserved place."""
        reserved = len(self._ordinary) >= self.most
        if not reserved:
            self._ordinary.add(connection)
        else:
            self._warn()
            if len(self._reserved) >= RESERVED:
                silent = (held for held in self._reserved if held.silent)
                crowded_out = next(silent, next(iter(self._reserved)))
                del self._reserved[crowded_out]
                crowded_out.crowd_out()
            self._reserved[connection] = None
        self._count()
        return reserved

    def leave(self, connection: Placed) -> None:
        """A connection has ended."""
        self._ordinary.discard(connection)
        self._reserved.pop(connection, None)
        self._count()

    def _count(self) -> None:
        self._counted(len(self._ordinary) + len(self._reserved), self.most)

    def _warn(self) -> None:
        now = monotonic()
        if now - self._warned >= WARN_SECONDS:
            self._warned = now
            log.warning(
                "all %d connections are taken: until some end, only health and metrics are answered; raise"
                " LAUNCHBOUND_MAX_CONNECTIONS, or have a proxy limit the connections of each address",
                self.most,
            )


def affordable(connections: int) -> int:
    """As many of `connections` as this process may open files for, whose soft limit is raised to that.

    Raises ValueError where the limit leaves none.
    """
    needed = _descriptors(connections)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most == needed:
        return connections
    left = (most - _descriptors(0)) // DESCRIPTORS_EACH
    limited = f"this process may open {most} files (ulimit -n), {connections} connections need {needed}"
    if left < 1:
        raise ValueError(f"{limited}, and one needs {_descriptors(1)}: raise that limit")
    remedy = "raise that limit, or lower LAUNCHBOUND_MAX_CONNECTIONS"
    log.warning("%s: at most %d are served; %s", limited, left, remedy)
    return left


def _descriptors(connections: int) -> int:
    return OTHER_DESCRIPTORS + RESERVED + connections * DESCRIPTORS_EACH


def raw_answer(refusal: LaunchboundError, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A whole HTTP answer in the shape of all errors, the last one of its connection."""
    body = msgspec.json.encode(error_body(refusal.type, refusal.message, refusal.param))
    headers = [
        *default_headers,
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if refusal.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after_seconds))
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return STATUS_LINE[refusal.status] + lines + b"\r\n" + body
