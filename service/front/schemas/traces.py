"""The answer of GET /v1/traces."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict


class TraceEntry(TypedDict):
    """A profiled request that is kept: `created` in seconds since 1970, `operators` by their self time.

    `id` is the trace's own, `request_id` the `X-Request-ID` of its request, which others may have had too.
    """

    id: str
    request_id: NotRequired[str]
    created: float
    mode: NotRequired[str]
    batch_size: NotRequired[int]
    steps: NotRequired[int]
    kernels_unknown: NotRequired[dict[str, int]]
    operators: NotRequired[list[dict[str, Any]]]


class TracesAnswer(TypedDict):
    """Answer of GET /v1/traces, newest first."""

    traces: list[TraceEntry]
