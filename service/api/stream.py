"""Server-sent events of one generation: `token`s as they exist, then one `result`, or one `error`."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.answers import encode_json, generate_answer
from service.api.call import Call
from service.api.parts import Parts
from service.api.request_id import id_of
from service.border.messages import Job
from service.border.ticket import Ticket
from service.errors import LaunchboundError, error_body


class EventStream(Response):
    """Runs `job` and streams it. Until the first token exists, a failure is still a plain error answer."""

    media_type = "text/event-stream"

    def __init__(self, parts: Parts, job: Job, received_ns: int) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._parts, self._job, self._received_ns = parts, job, received_ns
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
                await self._finish(send, "error", error_body(error.type, error.message, error.param))
                return
            settings = self._parts.settings
            answer = generate_answer(account, id_of(scope), settings.model, self._parts.device)
            await self._finish(send, "result", answer)
        self._parts.observe(account)

    async def _send_tokens(self, ticket: Ticket, send: Send) -> None:
        async for tokens in ticket.tokens():
            events = [event("token", {"index": token.index, "text": token.text}) for token in tokens]
            await self._start(send)
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

    async def _finish(self, send: Send, name: str, data: object) -> None:
        await self._start(send)
        await send({"type": "http.response.body", "body": event(name, data), "more_body": False})


def event(name: str, data: object) -> bytes:
    """One event; JSON has no raw line ends, so the data is one line."""
    return b"event: " + name.encode() + b"\ndata: " + encode_json(data) + b"\n\n"
