"""Server-sent events of one generation: tokens as they arrive, then one result event, or one error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.front.api.answers import encode_json, generate_answer
from service.front.api.call import EngineCall
from service.front.api.state import AppState
from service.front.auto_mode import Asked
from service.front.errors import LaunchboundError, error_body
from service.front.pending_request import PendingRequest
from service.front.request_timing import RequestTiming
from service.protocol.messages import Job, Token


class Events(Protocol):
    """How one route encodes its stream."""

    def tokens(self, tokens: Sequence[Token]) -> bytes:
        """Tokens that have just arrived."""

    def end(self, timing: RequestTiming) -> bytes:
        """The end of a stream that ended well."""

    def error(self, error: LaunchboundError) -> bytes:
        """The end of one that failed."""


class EventStream(Response):
    """Runs `job` and streams it. Until the first token exists, a failure is still a plain error answer."""

    media_type = "text/event-stream"

    def __init__(self, state: AppState, job: Job, received_ns: int, events: Events) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._state = state
        self._job = job
        self._received_ns = received_ns
        self._events = events
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the job has ended; the request is observed when its last event has been sent."""
        async with EngineCall(self._state, scope, receive) as call:
            pending = call.submit(self._job)
            self._state.observe_all()  # earlier requests, while the engine works
            await self._send_tokens(pending, send)
            call.answered_status = self.status_code if self._started else None
            try:
                timing = await call.result(pending, self._received_ns)
            except LaunchboundError as error:
                if not self._started:
                    raise
                await self._send(send, self._events.error(error), last=True)
                return
            await self._send(send, self._events.end(timing), last=True)
        self._state.observe_soon(timing)

    async def _send_tokens(self, pending: PendingRequest, send: Send) -> None:
        async for tokens in pending.tokens():
            await self._send(send, self._events.tokens(tokens), last=False)

    async def _send(self, send: Send, events: bytes, last: bool) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": events, "more_body": not last})


class GenerateEvents:
    """`token`s, then one `result` with the answer of a plain request, or one `error`."""

    def __init__(self, state: AppState, request_id: str, asked: Asked) -> None:
        self._state = state
        self._request_id = request_id
        self._asked = asked

    def tokens(self, tokens: Sequence[Token]) -> bytes:
        """One `token` event each."""
        return b"".join(_event("token", {"index": token.index, "text": token.text}) for token in tokens)

    def end(self, timing: RequestTiming) -> bytes:
        """The `result`."""
        model, device = self._state.settings.model, self._state.client.device
        return _event("result", generate_answer(timing, self._asked, self._request_id, model, device))

    def error(self, error: LaunchboundError) -> bytes:
        """The `error`."""
        return _event("error", error_body(error.type, error.message, error.param))


def _event(name: str, data: object) -> bytes:
    """One event; JSON has no raw line ends, so the data is one line."""
    return b"event: " + name.encode() + b"\ndata: " + encode_json(data) + b"\n\n"
