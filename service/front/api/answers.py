"""Accounts become answers: the body, and the same numbers in a `Server-Timing` header."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from service.front.request_timing import RequestTiming
from service.front.schemas.answers import GenerateAnswer, PhaseBody, TimingsBody
from service.protocol.messages import PhaseTimings

SHOWN_PARTS = ("queue", "dispatch", "kernel", "sync_wait", "other", "total")

encode_json = msgspec.json.Encoder().encode


def reply(answer: object, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """An answer as JSON."""
    return Response(encode_json(answer), status, headers, media_type="application/json")


def generate_answer(timing: RequestTiming, request_id: str, model: str, device: str) -> GenerateAnswer:
    """The body of one generation."""
    outcome = timing.outcome
    generated = sum(output.completion_tokens for output in outcome.outputs)
    return {
        "id": request_id,
        "model": model,
        "mode": {"requested": timing.job.mode, "effective": outcome.effective, "reason": outcome.reason},
        "device": device,
        "batch_size": outcome.batch_size,
        "batch_bucket": outcome.batch_bucket,
        "outputs": [
            {
                "text": output.text,
                "finish_reason": output.finish_reason,
                "completion_tokens": output.completion_tokens,
            }
            for output in outcome.outputs
        ],
        "usage": {
            "prompt_tokens": outcome.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": outcome.prompt_tokens + generated,
        },
        "timings": timings_body(timing),
    }


def timings_body(timing: RequestTiming) -> TimingsBody:
    """Where the request's time went. Serialising this very answer cannot be in it: the total ends before."""
    timings = timing.timings
    return {
        "queue_seconds": timing.queue_seconds,
        "dispatch_seconds": timing.dispatch_seconds,
        "device_span_seconds": timing.device_span_seconds,
        "kernel_seconds": timing.kernel_seconds,
        "sync_wait_seconds": timing.sync_wait_seconds,
        "other_seconds": timing.other_seconds,
        "border_seconds": timing.border_seconds,
        "tokenise_seconds": timings.tokenise_seconds,
        "total_seconds": timing.total_seconds,
        "time_to_first_token_seconds": timing.time_to_first_token_seconds,
        "involuntary_switches": timings.involuntary_switches,
        "prefill": _phase_body(timings.prefill),
        "decode": _phase_body(timings.decode),
        "sources": {"dispatch": timings.dispatch_source, "kernel": timings.kernel_source},
        "kernels": timing.outcome.kernels,
        "launches": timing.outcome.launches,
        "profiled": timing.outcome.profile is not None,
    }


def server_timing(body: TimingsBody) -> str:
    """The measurable parts in milliseconds, for the `Server-Timing` header."""
    numbers: dict[str, Any] = {**body}
    parts = {name: numbers[f"{name}_seconds"] for name in SHOWN_PARTS}
    return ", ".join(
        f"{name};dur={seconds * 1000:.4f}" for name, seconds in parts.items() if seconds is not None
    )


def _phase_body(phase: PhaseTimings) -> PhaseBody:
    return {
        "steps": phase.steps,
        "wall_seconds": phase.wall_seconds,
        "dispatch_seconds": phase.dispatch_seconds,
        "device_span_seconds": phase.device_span_seconds,
        "kernel_seconds": phase.kernel_seconds,
        "sync_wait_seconds": phase.sync_wait_seconds,
    }
