"""What a connection may take, and the answer to one that takes more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.front.errors import LaunchboundError, error_body


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`connections` at a time; for how long a head, a body, and an unread answer are waited for."""

    connections: int
    head_seconds: float
    body_seconds: float
    unread_seconds: float


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
