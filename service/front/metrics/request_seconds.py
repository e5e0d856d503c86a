"""The time histograms of whole requests, and what each of them takes from one request."""

from __future__ import annotations

from service.front.request_timing import RequestTiming


def request_seconds(timing: RequestTiming, splits: bool, merges: bool) -> dict[str, float | None]:
    """Histogram → seconds of this request; None: not measured.

    `splits`: its engine tells dispatch and kernel apart. `merges`: it may run requests together, so that one
    can stall for another.
    """
    parts = timing.parts
    seconds = {
        "request_duration_seconds": parts.total_seconds,
        "request_queue_seconds": parts.queue_seconds,
        "request_dispatch_seconds": parts.dispatch_seconds,
        "request_device_span_seconds": parts.device_span_seconds,
        "request_kernel_seconds": parts.kernel_seconds,
        "request_sync_wait_seconds": parts.sync_wait_seconds,
        "request_stall_seconds": parts.stall_seconds or 0.0 if merges else None,
        "request_other_seconds": parts.other_seconds,
        "time_to_first_token_seconds": parts.time_to_first_token_seconds,
        "time_per_output_token_seconds": timing.time_per_output_token_seconds,
    }
    if splits and parts.dispatch_seconds is None:
        # Its steps have no samples yet: what closes its sum would be the steps themselves.
        del seconds["request_other_seconds"]
    return seconds
