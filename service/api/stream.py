"""Server-sent events of one generation: tokens as they exist, then one last event, or one error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.answers import encode_json, generate_answer
from service.api.call import Call
from service.api.parts import Parts
from service.border.account import Account
from service.border.messages import Job, Token
from service.border.ticket import Ticket
from service.errors import LaunchboundError, error_body


class Events(Protocol):
    """How one route words its stream."""

    def tokens(self, tokens: Sequence[Token]) -> bytes:
        """Pieces of text that have just arrived."""

    def end(self, account: Account) -> bytes:
        """The last word of a stream that ended well."""

    def error(self, error: LaunchboundError) -> bytes:
        """The last word of one that did not."""


class EventStream(Response):
    """Runs `job` and streams it. Until the first token exists, a failure is still a plain error answer."""

    media_type = "text/event-stream"

    def __init__(self, parts: Parts, job: Job, received_ns: int, events: Events) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._parts, self._job, self._received_ns, self._events = parts, job, received_ns, events
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the job has ended; the request is observed when its last event has left."""
        async with Call(self._parts, receive) as call:
            ticket = call.submit(self._job)
            await self._send_tokens(ticket, send)
            try:
                account = await call.account(ticket, self._received_ns)
            except LaunchboundError as error:
                if not self._started:
                    raise
                if error.rejection is not None:
                    # Not refused but cut off: who answers errors will not see it, and nobody else counts it.
                    self._parts.metrics.failed(self._job.mode, "error")
                await self._send(send, self._events.error(error), last=True)
                return
            await self._send(send, self._events.end(account), last=True)
        self._parts.observe(account)

    async def _send_tokens(self, ticket: Ticket, send: Send) -> None:
        async for tokens in ticket.tokens():
            await self._send(send, self._events.tokens(tokens), last=False)

    async def _send(self, send: Send, events: bytes, last: bool) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": events, "more_body": not last})


class GenerateEvents:
    """`token`s, then one `result` that is what a plain request answers, or one `error`."""

    def __init__(self, parts: Parts, request_id: str) -> None:
        self._parts, self._request_id = parts, request_id

    def tokens(self, tokens: Sequence[Token]) -> bytes:
        """One `token` event each."""
        return b"".join(_event("token", {"index": token.index, "text": token.text}) for token in tokens)

    def end(self, account: Account) -> bytes:
        """The `result`."""
        settings = self._parts.settings
        return _event(
            "result", generate_answer(account, self._request_id, settings.model, self._parts.device)
        )

    def error(self, error: LaunchboundError) -> bytes:
        """The `error`."""
        return _event("error", error_body(error.type, error.message, error.param))


def _event(name: str, data: object) -> bytes:
    """One event; JSON has no raw line ends, so the data is one line."""
    return b"event: " + name.encode() + b"\ndata: " + encode_json(data) + b"\n\n"
