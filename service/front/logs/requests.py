"""One line for each request that was counted: how it ended, how large it was, and where its time went."""

from __future__ import annotations

import logging
from typing import Literal

from service.front.errors import LaunchboundError
from service.front.logs.event import Event
from service.front.request_timing import RequestTiming
from service.protocol.messages import Job

LogRequests = Literal["all", "failed", "off"]
"""Which requests have a line: every one, those that did not end well, or none."""

Ending = Literal["ok", "error", "cancelled", "timeout", "oom", "rejected"]
"""As the label `outcome` of the metric `requests_total`."""

log = logging.getLogger("launchbound.request")

PARTS = (
    ("queue", "queue_seconds"),
    ("dispatch", "dispatch_seconds"),
    ("kernel", "kernel_seconds"),
    ("wait", "sync_wait_seconds"),
    ("stall", "stall_seconds"),
    ("other", "other_seconds"),
    ("first", "time_to_first_token_seconds"),
)
"""What people are shown of the timings, and under which name."""


class RequestLine(Event, frozen=True, kw_only=True):
    """One request. The timings have the names and the meaning that they have in its answer.

    None: not measured, or not known because the request did not get that far. `total_seconds` of one that
    failed goes from its parsed body to its failure. `error` is the type that the client was told.
    """

    id: str
    mode: str | None
    effective: str | None = None
    status: int
    outcome: Ending
    error: str | None = None
    stream: bool | None = None
    batch_size: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_seconds: float | None = None
    queue_seconds: float | None = None
    dispatch_seconds: float | None = None
    device_span_seconds: float | None = None
    kernel_seconds: float | None = None
    sync_wait_seconds: float | None = None
    stall_seconds: float | None = None
    other_seconds: float | None = None
    time_to_first_token_seconds: float | None = None
    involuntary_switches: int | None = None
    profiled: bool | None = None
    sampled: bool | None = None

    def __str__(self) -> str:
        total = "-" if self.total_seconds is None else f"{self.total_seconds * 1000:.2f} ms"
        words = [f"{self.mode or '-':<15} {self.status} {self.outcome:<9} {total:>12}"]
        if self.batch_size is not None:
            words.append(f"batch {self.batch_size:<2}")
        if self.prompt_tokens is not None:
            words.append(f"tokens {self.prompt_tokens:>3} + {self.completion_tokens:<3}")
        for name, field in PARTS:
            if (seconds := getattr(self, field)) is not None:
                words.append(f"{name} {seconds * 1000:.2f}")
        if self.error is not None:
            words.append(self.error)
        return "  ".join([*words, f"id {self.id}"])


class RequestLog:
    """Writes the lines that `which` asks for."""

    def __init__(self, which: LogRequests) -> None:
        self._all = which == "all"
        self._failed = which != "off"

    def ended(self, timing: RequestTiming) -> None:
        """A request that ended well."""
        if self._all and log.isEnabledFor(logging.INFO):
            log.info(_line_of(timing))

    def failed(self, job: Job, error: LaunchboundError, outcome: Ending, status: int, seconds: float) -> None:
        """An accepted request that did not; `status` is what its client has got."""
        if self._failed:
            line = RequestLine(
                id=job.request_id,
                mode=job.mode,
                status=status,
                outcome=outcome,
                error=error.type,
                stream=job.stream,
                batch_size=len(job.prompts),
                total_seconds=seconds,
            )
            log.warning(line)

    def rejected(self, request_id: str, mode: str | None, error: LaunchboundError, status: int) -> None:
        """A request that was refused before it ran; `mode` where it had named a valid one."""
        if self._failed:
            line = RequestLine(id=request_id, mode=mode, status=status, outcome="rejected", error=error.type)
            log.warning(line)

    def broken(self, request_id: str) -> None:
        """A request that ended by a fault of ours."""
        if self._failed:
            line = RequestLine(id=request_id, mode=None, status=500, outcome="error", error="internal")
            log.error(line)


def _line_of(timing: RequestTiming) -> RequestLine:
    outcome, parts = timing.outcome, timing.parts
    return RequestLine(
        id=timing.job.request_id,
        mode=timing.job.mode,
        effective=outcome.effective,
        status=200,
        outcome="ok",
        stream=timing.job.stream,
        batch_size=outcome.batch_size,
        prompt_tokens=outcome.prompt_tokens,
        completion_tokens=sum(output.completion_tokens for output in outcome.outputs),
        total_seconds=parts.total_seconds,
        queue_seconds=parts.queue_seconds,
        dispatch_seconds=parts.dispatch_seconds,
        device_span_seconds=parts.device_span_seconds,
        kernel_seconds=parts.kernel_seconds,
        sync_wait_seconds=parts.sync_wait_seconds,
        stall_seconds=parts.stall_seconds,
        other_seconds=parts.other_seconds,
        time_to_first_token_seconds=parts.time_to_first_token_seconds,
        involuntary_switches=parts.involuntary_switches,
        profiled=parts.profiled,
        sampled=parts.sampled,
    )
