"""What of a study's arguments depends on this instance: its modes, its batch buckets, its device."""

from __future__ import annotations

from typing import Any

from service.front.api.state import AppState
from service.front.errors import BadRequest
from service.front.schemas.studies import MemoryBody, StudyBody


def check_served(state: AppState, body: StudyBody) -> None:
    """Raise UnknownMode or BadRequest for what this instance does not serve."""
    for param in ("mode", "against", "modes"):
        named = getattr(body, param, None)
        for mode in named if isinstance(named, list) else [named]:
            if mode is not None:
                state.check_mode(mode, param)
    if isinstance(body, MemoryBody) and body.snapshot and state.client.device == "cpu":
        message = "a snapshot is of CUDA's allocator, and this service runs on a CPU: leave it out"
        raise BadRequest(message, type="unsupported_here", param="snapshot")


def in_buckets(state: AppState, given: dict[str, Any]) -> dict[str, Any]:
    """`given` with each batch size as the bucket that it is run in. Raises BadRequest."""
    found = dict(given)
    if "batch_size" in given:
        found["batch_size"] = bucket_of(state, given["batch_size"])
    if "batch_sizes" in given:
        found["batch_sizes"] = [bucket_of(state, size, "batch_sizes") for size in given["batch_sizes"]]
    return found


def bucket_of(state: AppState, batch_size: int, param: str = "batch_size") -> int:
    """The smallest bucket that holds `batch_size`. Raises BadRequest, naming `param`, where none does."""
    buckets = state.settings.batch_sizes
    if not 1 <= batch_size <= buckets[-1]:
        raise BadRequest(f"{param} lies between 1 and {buckets[-1]} here, got {batch_size}", param=param)
    return min(size for size in buckets if size >= batch_size)
