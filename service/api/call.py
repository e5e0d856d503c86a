"""One HTTP call's dealings with the engine: its jobs end with it, and each is counted once."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from types import TracebackType
from typing import Self

from starlette.types import Receive

from service.api.parts import Parts
from service.border.account import Account, add_up
from service.border.messages import Job, Outcome, Problem
from service.border.ticket import Ticket
from service.errors import (
    BadRequest,
    ClientGone,
    DeadlinePassed,
    LaunchboundError,
    OutOfMemory,
    UnknownMode,
    from_problem,
)
from service.schemas import Generation


class Call:
    """Watches for the client going away while jobs run, and then has the engine stop the running one."""

    def __init__(self, parts: Parts, receive: Receive) -> None:
        self._parts, self._receive = parts, receive
        self._ticket: Ticket | None = None
        self._gone = False

    async def __aenter__(self) -> Self:
        self._watch = asyncio.create_task(self._until_disconnect())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if self._ticket is not None and not self._ticket.done:
            self._parts.client.cancel(self._ticket)

    def submit(self, job: Job) -> Ticket:
        """Send `job`; raises what `EngineClient.submit` raises, and ClientGone."""
        if self._gone:
            raise ClientGone("the client closed the connection")
        self._ticket = self._parts.client.submit(job)
        return self._ticket

    async def account(self, ticket: Ticket, received_ns: int) -> Account:
        """Wait for the end and add up its time until now; `received_ns` is when the body was parsed.

        Raises the LaunchboundError that it ended with; what was not refused but failed is counted here.
        """
        try:
            outcome = await ticket.outcome()
            if outcome.kind != "ok":
                raise from_problem(outcome.problem or _default_problem(outcome))
        except LaunchboundError as error:
            if error.rejection is None:
                self._parts.metrics.failed(ticket.job.mode, _outcome_label(error))
            raise
        return add_up(ticket.job, outcome, received_ns, ticket.outcome_ns, perf_counter_ns())

    async def _until_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._gone = True
        if self._ticket is not None:
            self._parts.client.cancel(self._ticket)


def check_mode(parts: Parts, mode: str) -> None:
    """Raise UnknownMode unless this instance serves `mode`."""
    known = parts.settings.modes
    if mode not in known:
        raise UnknownMode(f"no mode '{mode[:64]}' here; try one of {', '.join(known)}", param="mode")


def check_limits(parts: Parts, body: Generation) -> None:
    """Raise BadRequest, naming the limit, for what this instance cannot run in any mode."""
    largest = parts.settings.batch_sizes[-1]
    if len(body.prompts) > largest:
        message = (
            f"prompts: {len(body.prompts)} are over the limit of {largest}; send them in several requests"
        )
        raise BadRequest(message, type="batch_too_large", param="prompts")
    engine = parts.client.engine
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
