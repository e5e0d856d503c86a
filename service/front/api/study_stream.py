"""A study as server-sent events: `progress`, then exactly one `finding` or `error`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.front.api.answers import encode_json
from service.front.api.problems import refuse
from service.front.api.study_call import StudyCall
from service.front.errors import ClientGone, LaunchboundError
from service.front.findings import KeptFinding
from service.front.study_result import StudyResult

EVENT_STREAM = "text/event-stream"

HEARTBEAT_SECONDS = 10.0
"""The longest silence: proxies and clients take a longer one for the end."""

HEARTBEAT = b": the study goes on\n\n"
"""A comment, which clients skip."""


def wants_events(request: Request) -> bool:
    """Whether the client asks for events by its `Accept`."""
    kinds = (kind.partition(";")[0].strip().lower() for kind in request.headers.get("accept", "").split(","))
    return EVENT_STREAM in kinds


class StudyStream(Response):
    """Runs a study and streams it. Until it is admitted, a failure is still a plain error answer.

    `keep` keeps what it found.
    """

    media_type = EVENT_STREAM

    def __init__(
        self, call: Callable[[Receive], StudyCall], keep: Callable[[StudyResult], KeptFinding]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._call = call
        self._keep = keep
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the study has ended; a client that goes away ends it."""
        async with self._call(receive) as call:
            try:
                done = False
                while not done:
                    done = call.done  # before the reports are read: the last ones may arrive with the end
                    await self._send_progress(call, send)
                last = finding_event(self._keep(await call.result()))
            except ClientGone:
                if not self._started:
                    raise
                return
            except LaunchboundError as error:
                if not self._started:
                    raise
                # The same problem, counted and logged alike, as without events.
                last = _event("error", bytes(refuse(Request(scope), error).body))
        await self._send(send, last, more=False)

    async def _send_progress(self, call: StudyCall, send: Send) -> None:
        reports = await call.reports(HEARTBEAT_SECONDS)
        events = b"".join(_event("progress", encode_json(report)) for report in reports)
        if events or not call.done:
            await self._send(send, events or HEARTBEAT, more=True)

    async def _send(self, send: Send, events: bytes, more: bool) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": events, "more_body": more})


def finding_event(kept: KeptFinding) -> bytes:
    """The finding, with what names it."""
    data = {
        "id": kept.id,
        "study": kept.study,
        "arguments": kept.arguments,
        "created": kept.created,
        "finding": msgspec.Raw(kept.body),
    }
    return _event("finding", encode_json(data))


def _event(name: str, data: bytes) -> bytes:
    """One event; JSON has no raw line ends, so the data is one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
