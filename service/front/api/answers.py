"""What the service answers: the body, and the same numbers in a `Server-Timing` header."""

from __future__ import annotations

import math

import msgspec
from starlette.responses import Response

from service.front.advice import BASELINE
from service.front.auto_mode import Asked
from service.front.request_timing import RequestTiming
from service.front.schemas.answers import GenerateAnswer, ModeName, Speedup, TimingsBody
from service.protocol.messages import Outcome
from service.protocol.modes import AUTO
from service.statistics.choice import MINIMUM_ROUNDS
from service.statistics.intervals import Interval

SHOWN_PARTS = ("queue", "dispatch", "kernel", "sync_wait", "stall", "other", "total")

encode_json = msgspec.json.Encoder().encode


def reply(answer: object, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """An answer as JSON."""
    return Response(encode_json(answer), status, headers, media_type="application/json")


def generate_answer(
    timing: RequestTiming, asked: Asked, request_id: str, model: str, device: str
) -> GenerateAnswer:
    """The body of one generation."""
    outcome = timing.outcome
    counts = [len(output.token_ids) for output in outcome.outputs]
    generated = sum(counts)
    return {
        "id": request_id,
        "model": model,
        "mode": _mode_name(asked, outcome),
        "device": device,
        "batch_size": outcome.batch_size,
        "batch_bucket": outcome.batch_bucket,
        "outputs": [
            {
                "text": output.text,
                "finish_reason": output.finish_reason,
                "completion_tokens": count,
            }
            for output, count in zip(outcome.outputs, counts, strict=True)
        ],
        "usage": {
            "prompt_tokens": outcome.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": outcome.prompt_tokens + generated,
        },
        "timings": timing.parts,
    }


def _mode_name(asked: Asked, outcome: Outcome) -> ModeName:
    """What was asked for and what ran; why that was picked, and why it ran in the form that it did."""
    reasons = [reason for reason in (asked.reason, outcome.reason) if reason]
    name: ModeName = {
        "requested": asked.requested,
        "effective": outcome.effective,
        "reason": "; ".join(reasons) or None,
    }
    if asked.requested == AUTO:
        name["picked"] = asked.mode
    return name


def server_timing(timings: TimingsBody) -> str:
    """The measurable parts in milliseconds, for the `Server-Timing` header."""
    parts = {name: getattr(timings, f"{name}_seconds") for name in SHOWN_PARTS}
    return ", ".join(
        f"{name};dur={seconds * 1000:.4f}" for name, seconds in parts.items() if seconds is not None
    )


def speedup(ratio: Interval, vs: str = BASELINE) -> Speedup:
    """A speed-up over `vs`; without an interval where the rounds are too few for the verdict's rule."""
    bounded = ratio.samples >= MINIMUM_ROUNDS and ratio.low > 0 and math.isfinite(ratio.high)
    return {
        "vs": vs,
        "ratio": ratio.value,
        "low": ratio.low if bounded else None,
        "high": ratio.high if bounded else None,
    }
