"""One HTTP call's dealings with the engine: its jobs end with it, and each is counted once."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from types import TracebackType
from typing import Self

from starlette.types import Receive

from service.front.api.state import AppState
from service.front.errors import (
    BadRequest,
    ClientGone,
    DeadlinePassed,
    LaunchboundError,
    OutOfMemory,
    UnknownMode,
    from_problem,
)
from service.front.pending_request import PendingRequest
from service.front.request_timing import RequestTiming, add_up
from service.front.schemas.requests import Generation
from service.protocol.messages import Job, Outcome, Problem


class Call:
    """Watches for the client going away while jobs run, and then has the engine stop the running one."""

    def __init__(self, state: AppState, receive: Receive) -> None:
        self._state, self._receive = state, receive
        self._pending: PendingRequest | None = None
        self._gone = False

    async def __aenter__(self) -> Self:
        self._watch = asyncio.create_task(self._until_disconnect())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if self._pending is not None and not self._pending.done:
            self._state.client.cancel(self._pending)

    def submit(self, job: Job) -> PendingRequest:
        """Send `job`; raises what `EngineClient.submit` raises, and ClientGone."""
        if self._gone:
            raise ClientGone("the client closed the connection")
        self._pending = self._state.client.submit(job)
        return self._pending

    async def timing(self, pending: PendingRequest, received_ns: int) -> RequestTiming:
        """Wait for the end and add up its time until now; `received_ns` is when the body was parsed.

        Raises the LaunchboundError that it ended with; what was not refused but failed is counted here.
        """
        try:
            outcome = await pending.outcome()
            if outcome.kind != "ok":
                raise from_problem(outcome.problem or _default_problem(outcome))
        except LaunchboundError as error:
            if error.rejection is None:
                self._state.metrics.failed(pending.job.mode, _outcome_label(error))
            raise
        return add_up(pending.job, outcome, received_ns, pending.outcome_ns, perf_counter_ns())

    async def _until_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._gone = True
        if self._pending is not None:
            self._state.client.cancel(self._pending)


def check_mode(state: AppState, mode: str) -> None:
    """Raise UnknownMode unless this instance serves `mode`."""
    known = state.settings.modes
    if mode not in known:
        raise UnknownMode(f"no mode '{mode[:64]}' here; try one of {', '.join(known)}", param="mode")


def check_limits(state: AppState, body: Generation) -> None:
    """Raise BadRequest, naming the limit, for what this instance cannot run in any mode."""
    largest = state.settings.batch_sizes[-1]
    if len(body.prompts) > largest:
        message = (
            f"prompts: {len(body.prompts)} are over the limit of {largest}; send them in several requests"
        )
        raise BadRequest(message, type="batch_too_large", param="prompts")
    engine = state.client.engine
    if engine is not None and body.max_new_tokens >= engine.context:
        message = (
            f"max_new_tokens: {body.max_new_tokens} and a prompt are over the context of {engine.context}"
        )
        raise BadRequest(message, param="max_new_tokens")


def _default_problem(outcome: Outcome) -> Problem:
    texts = {
        "timeout": ("timeout", "the deadline passed before the answer was complete: ask for fewer tokens"),
        "cancelled": ("cancelled", "the client closed the connection"),
        "oom": ("out_of_memory", "the device is out of memory: send fewer prompts or tokens"),
    }
    kind, message = texts.get(outcome.kind, ("internal", "the engine failed and gave no reason"))
    return Problem(type=kind, message=message)


def _outcome_label(error: LaunchboundError) -> str:
    labels = {DeadlinePassed: "timeout", ClientGone: "cancelled", OutOfMemory: "oom"}
    return labels.get(type(error), "error")
