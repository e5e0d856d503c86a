"""What the routes answer, and how the OpenAPI document shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NotRequired, cast

import msgspec
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Send
from typing_extensions import TypedDict

from service.front.advice import EAGER, Asked
from service.front.errors import LaunchboundError, error_body
from service.front.request_timing import ForwardTimings, RequestParts, RequestTiming, TimingsBody
from service.front.routes.state import AppState
from service.front.schemas import fields_of
from service.modes import AUTO
from service.records import FinishReason, Outcome, Parity, Token
from service.statistics.choice import MINIMUM_ROUNDS
from service.statistics.intervals import Interval


class ErrorDetail(TypedDict):
    """`param` names the field to change, where there is one."""

    type: str
    message: str
    param: str | None


class ErrorBody(TypedDict):
    """The one error shape."""

    error: ErrorDetail


class ModeName(TypedDict):
    """The requested mode, and the one that the request really ran as; `reason` says who advises `auto`."""

    requested: str
    effective: str
    reason: str | None
    picked: NotRequired[str]


class OutputBody(TypedDict):
    """The completion of one prompt."""

    text: str
    finish_reason: FinishReason
    completion_tokens: int


class Usage(TypedDict):
    """Tokens, padding not counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class GenerateAnswer(TypedDict):
    """Answer of generate, and a stream's last event."""

    id: str
    model: str
    mode: ModeName
    device: str
    batch_size: int
    batch_bucket: int
    outputs: list[OutputBody]
    usage: Usage
    timings: TimingsBody


class ForwardAnswer(TypedDict):
    """Answer of forward; `outputs` is null unless asked for."""

    id: str
    model: str
    mode: ModeName
    device: str
    batch_size: int
    calls: int
    outputs: Any
    timings: ForwardTimings


@fields_of(Parity)
class ParityBody:
    """Logits beside eager's on fixed prompts; of a module its outputs."""


class Speedup(TypedDict):
    """Paired over the rounds, with its 95 % interval; null where there are fewer than 8 rounds."""

    vs: str
    ratio: float
    low: float | None
    high: float | None


EVENT_STREAM = "text/event-stream"

SHOWN_PARTS = ("queue", "dispatch", "kernel", "sync_wait", "stall", "other", "total")
_shown_seconds = attrgetter(*(f"{name}_seconds" for name in SHOWN_PARTS))

encode_json = msgspec.json.Encoder().encode


def reply(answer: object, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    return Response(encode_json(answer), status, headers, media_type="application/json")


def _mode_name(asked: Asked, outcome: Outcome) -> ModeName:
    reasons = [reason for reason in (asked.reason, outcome.reason) if reason]
    name: ModeName = {
        "requested": asked.requested,
        "effective": outcome.effective,
        "reason": "; ".join(reasons) or None,
    }
    if asked.requested == AUTO:
        name["picked"] = asked.mode
    return name


def server_timing(timings: RequestParts) -> str:
    shown = zip(SHOWN_PARTS, _shown_seconds(timings), strict=True)
    return ", ".join([f"{name};dur={seconds * 1000:.4f}" for name, seconds in shown if seconds is not None])


def speedup(ratio: Interval, vs: str = EAGER) -> Speedup:
    """A speed-up over `vs`; without an interval where the rounds are too few for the verdict's rule."""
    bounded = ratio.samples >= MINIMUM_ROUNDS and ratio.low > 0 and math.isfinite(ratio.high)
    return {
        "vs": vs,
        "ratio": ratio.value,
        "low": ratio.low if bounded else None,
        "high": ratio.high if bounded else None,
    }


@dataclass(frozen=True)
class GenerateAnswers:
    """One body; or as events `token`s, then one `result` with that body, or one `error`."""

    state: AppState
    request_id: str
    asked: Asked

    def answer(self, timing: RequestTiming) -> GenerateAnswer:
        outcome = timing.outcome
        counts = [len(output.token_ids) for output in outcome.outputs]
        generated = sum(counts)
        return {
            "id": self.request_id,
            "model": self.state.settings.model,
            "mode": _mode_name(self.asked, outcome),
            "device": self.state.client.device,
            "batch_size": outcome.batch_size,
            "batch_bucket": outcome.batch_bucket,
            "outputs": [
                {"text": output.text, "finish_reason": output.finish_reason, "completion_tokens": count}
                for output, count in zip(outcome.outputs, counts, strict=True)
            ],
            "usage": {
                "prompt_tokens": outcome.prompt_tokens,
                "completion_tokens": generated,
                "total_tokens": outcome.prompt_tokens + generated,
            },
            "timings": cast(TimingsBody, timing.parts),
        }

    def tokens(self, tokens: Sequence[Token]) -> bytes:
        return b"".join(event("token", {"index": token.index, "text": token.text}) for token in tokens)

    def end(self, timing: RequestTiming) -> bytes:
        return event("result", self.answer(timing))

    def error(self, error: LaunchboundError) -> bytes:
        return event("error", error_body(error.type, error.message, error.param))


def forward_answer(state: AppState, request_id: str, asked: Asked, timing: RequestTiming) -> ForwardAnswer:
    outcome, work = timing.outcome, timing.job.forward
    assert work is not None
    outputs = None if outcome.forward_outputs is None else msgspec.Raw(outcome.forward_outputs)
    return {
        "id": request_id,
        "model": state.settings.model,
        "mode": _mode_name(asked, outcome),
        "device": state.client.device,
        "batch_size": outcome.batch_size,
        "calls": work.calls,
        "outputs": outputs,
        "timings": cast(ForwardTimings, timing.parts),
    }


class EventAnswer(Response):
    """Server-sent events. Until the first has been sent, a failure is still a plain error answer."""

    media_type = EVENT_STREAM

    def __init__(self) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.started = False

    async def send_events(self, send: Send, events: bytes, last: bool = False) -> None:
        """Send `events`, the first ones behind the head."""
        if not self.started:
            self.started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": events, "more_body": not last})


def event(name: str, data: object) -> bytes:
    """One event; JSON has no raw line ends, so the data is one line."""
    return b"event: " + name.encode() + b"\ndata: " + encode_json(data) + b"\n\n"


Responses = dict[int | str, dict[str, Any]]


def error(status: int, description: str) -> Responses:
    return {status: {"model": ErrorBody, "description": description}}


OF_ANY_REQUEST: Responses = {
    **error(400, "Malformed HTTP."),
    **error(408, "The request did not arrive in time."),
    **error(431, "Request line and headers are over the limit."),
    **error(500, "A fault of the service; its log has the reason under the request id."),
    **error(503, "As many connections as are allowed are open."),
}
"""Also where the server refuses a connection or a head that no route has seen."""

ACCESS_ERRORS: Responses = {
    **error(401, "The API key is missing or wrong."),
    **error(403, "The `Host` is not one of this service's, or a web page of another origin calls."),
}
POST_ERRORS: Responses = error(415, "The body is not JSON.")
BODY_ERRORS: Responses = {
    **POST_ERRORS,
    **error(408, "The body did not arrive in time."),
    **error(413, "The body is over the limit."),
}
GENERATION_ERRORS: Responses = {
    **ACCESS_ERRORS,
    **BODY_ERRORS,
    **error(404, "Unknown mode."),
    **error(
        409,
        "A sweep is in progress, and the request has `X-Launchbound-Client` (see Retry-After); or `sample`"
        " is asked for, and a request cannot be sampled here.",
    ),
    **error(422, "The body cannot be served; `param` names the field."),
    **error(429, "Too many unfinished requests; see Retry-After."),
    **error(503, "Mode or engine not ready, out of memory, draining."),
    **error(504, "The deadline passed."),
}
STUDY_ERRORS: Responses = {
    **ACCESS_ERRORS,
    **POST_ERRORS,
    **{status: GENERATION_ERRORS[status] for status in (404, 422, 504)},
    **error(409, "A sweep is in progress, or another study; see Retry-After."),
    **error(503, "The engine is not ready, or the anatomy process ended."),
}
NO_STUDY = error(404, "No such finding; the message names the POST that makes one.")


def body_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """OpenAPI for a body that the route reads by itself; nested models stand inline.

    The document has one schema per body and no place for `$defs`, to which pydantic's references point.
    """
    whole = schema.model_json_schema()
    if "examples" not in whole:  # every field has a default
        whole["examples"] = [schema().model_dump(mode="json", exclude_none=True)]
    content = {"application/json": {"schema": _inline(whole, whole.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "description": schema.__doc__, "content": content}}


def _inline(node: Any, definitions: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """`node` with each reference to one of `definitions` replaced by it."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    referred = definitions[node["$ref"].removeprefix("#/$defs/")] if "$ref" in node else {}
    return {key: _inline(value, definitions) for key, value in {**referred, **node}.items() if key != "$ref"}
