"""The front's side of the border: bounded admission, and one ticket per job that always ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from time import monotonic, perf_counter_ns
from typing import Protocol

import msgspec

from service.border.messages import Cancel, Job, Outcome, Resting, ToEngine, ToFront, Token
from service.border.rest import Rest
from service.border.status import EngineStatus, ModeStatus
from service.border.ticket import Ticket
from service.errors import DeadlinePassed, Draining, EngineLost, ModeNotReady, QueueFull

log = logging.getLogger("launchbound.border")

GRACE_SECONDS = 1.0
"""How long after a job's deadline its own answer may still arrive before the front gives it up."""


class Listener(Protocol):
    """Who wants to know what the engine says of itself."""

    def engine(self, status: EngineStatus) -> None:
        """The engine said hello, or a figure in its status moved."""

    def mode(self, status: ModeStatus) -> None:
        """A mode changed."""

    def engine_lost(self) -> None:
        """The engine process ended; its successor starts from zero."""


class EngineClient:
    """Admits jobs, sends them through the current engine life, and gives each answer to its ticket."""

    def __init__(self, modes: list[str], max_queue: int, hang_seconds: float, listener: Listener) -> None:
        self.configured = modes
        self.engine: EngineStatus | None = None
        self.device = "unknown"
        self.modes: dict[str, ModeStatus] = {}
        self.down_reason = "the engine is starting"
        self.retry_after_seconds = 2
        self.draining = False
        self._drain_ends: float | None = None
        self.stuck = asyncio.Event()
        self.rest = Rest(self._post)
        self._max_queue, self._hang_seconds, self._listener = max_queue, hang_seconds, listener
        self._tickets: dict[str, Ticket] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._send: Callable[[bytes], bool] | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToFront).decode

    # ------------------------------------------------------------ for the routes

    def submit(self, job: Job) -> Ticket:
        """Accept and send `job`; its id is changed where a job of that id is already on its way.

        Raises Draining, ModeNotReady or QueueFull, and then nothing was sent.
        """
        self._admit(job.mode)
        number = 1
        while job.id in self._tickets:
            number += 1
            job = msgspec.structs.replace(job, id=f"{job.id.partition('#')[0]}#{number}")
        ticket = Ticket(job, asyncio.get_running_loop())
        self._tickets[job.id] = ticket
        self._idle.clear()
        ticket.call_later((job.deadline_ns - perf_counter_ns()) / 1e9 + GRACE_SECONDS, self._expire)
        self._post(job)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Ask the engine to stop this job between two steps; its outcome still comes."""
        if ticket.job.id in self._tickets:
            self._post(Cancel(id=ticket.job.id))

    def in_progress(self) -> Counter[str]:
        """Accepted and unfinished jobs by mode."""
        return Counter(ticket.job.mode for ticket in self._tickets.values())

    def longest_wait_seconds(self) -> float:
        """How long the oldest unfinished job has been on its way; 0 where there is none."""
        oldest = next(iter(self._tickets.values()), None)
        return (perf_counter_ns() - oldest.job.sent_ns) / 1e9 if oldest else 0.0

    def warming(self) -> list[str]:
        """Names of the modes that are yet to become ready, or to fail."""
        return [name for name in self.configured if self._state(name) in ("cold", "warming")]

    def waiting(self) -> int:
        """Accepted jobs that have not begun: the engine runs one at a time, and at rest none."""
        return max(0, len(self._tickets) - (0 if self.rest.held else 1))

    def ready_modes(self) -> list[str]:
        """Names of the modes that serve now, in the ladder's order."""
        return [name for name in self.configured if self._state(name) == "ready"]

    async def drain(self, seconds: float) -> None:
        """Refuse what is new, wait for what is running, and give up what has not ended in `seconds`.

        Called again, it waits for no longer than the first call would have.
        """
        self.draining = True
        self.rest.break_off(Draining("the service is shutting down; try another instance"))
        if self._drain_ends is None:
            self._drain_ends = monotonic() + seconds
        try:
            async with asyncio.timeout(self._drain_ends - monotonic()):
                await self._idle.wait()
        except TimeoutError:
            self.abandon()

    def abandon(self) -> None:
        """Shut down without waiting: everything unfinished is cancelled, and its waiters are told."""
        self.draining, self._drain_ends = True, monotonic()
        self.rest.break_off(Draining("the service was shut down"))
        tickets, self._tickets = list(self._tickets.values()), {}
        for ticket in tickets:
            self._post(Cancel(id=ticket.job.id))
            ticket.fail(Draining("the service was shut down before the answer was complete; send it again"))
        self._idle.set()

    def _admit(self, mode: str) -> None:
        if self.draining:
            raise Draining("the service is shutting down and takes no new requests; try another instance")
        if self.engine is None or self._send is None:
            raise ModeNotReady(
                f"{self.down_reason}; retry in {self.retry_after_seconds} s",
                type="engine_not_ready", retry_after_seconds=self.retry_after_seconds,
            )  # fmt: skip
        state = self._state(mode)
        if state != "ready":
            raise self._not_ready(mode, state)
        if len(self._tickets) >= self._max_queue:
            raise QueueFull(
                f"{self._max_queue} requests are accepted and unfinished; send fewer at a time",
                retry_after_seconds=1,
            )

    def _state(self, mode: str) -> str:
        return self.modes[mode].state if mode in self.modes else "cold"

    def _not_ready(self, mode: str, state: str) -> ModeNotReady:
        ready = f"ready: {', '.join(self.ready_modes()) or 'none yet'}"
        detail = self.modes[mode].detail if mode in self.modes else None
        if state == "failed":
            message = f"mode '{mode}' failed to become ready ({detail or 'no reason given'}); {ready}"
            return ModeNotReady(message, type="mode_failed", param="mode", retry_after_seconds=60)
        return ModeNotReady(f"mode '{mode}' is {state}; {ready}", param="mode")

    # ------------------------------------------------------------ for the supervisor

    def attach(self, send: Callable[[bytes], bool]) -> None:
        """A new engine life begins; `send` hands a frame to it without waiting, False where it is not there.

        What could not be sent to an engine that has just ended fails with everything else it had, in `lost`.
        """
        self._send = send
        self.stuck.clear()

    def detach(self) -> None:
        """The engine's socket is about to close."""
        self._send = None

    def received(self, frame: bytes) -> None:
        """One message from the engine. Raises msgspec.DecodeError where it is none that we know."""
        message = self._decode(frame)
        if isinstance(message, Token):
            if (ticket := self._tickets.get(message.id)) is not None:
                ticket.push(message)
        elif isinstance(message, Outcome):
            if (ticket := self._tickets.get(message.id)) is not None:
                self._forget(message.id)
                ticket.finish(message)
        elif isinstance(message, ModeStatus):
            if self._state(message.mode) != message.state:
                log.info("mode %s: %s %s", message.mode, message.state, message.detail or "")
            self.modes[message.mode] = message
            self._listener.mode(message)
        elif isinstance(message, Resting):
            self.rest.answered(message)
        else:
            self.engine, self.device = message, message.device
            self._listener.engine(message)

    def lost(self, reason: str, retry_after_seconds: int) -> None:
        """The engine life ended: everything it had fails, and nothing is ready until the next says so."""
        self.down_reason, self.retry_after_seconds = reason, retry_after_seconds
        self.engine, self._send = None, None
        self.modes.clear()
        tickets, self._tickets = list(self._tickets.values()), {}
        self._idle.set()
        for ticket in tickets:
            ticket.fail(EngineLost(f"{reason}; send it again", retry_after_seconds=retry_after_seconds))
        self.rest.break_off(EngineLost(f"{reason}; try again", retry_after_seconds=retry_after_seconds))
        self._listener.engine_lost()

    def _post(self, message: ToEngine) -> None:
        if self._send is not None:
            self._send(self._encode(message))

    def _forget(self, job_id: str) -> None:
        self._tickets.pop(job_id, None)
        if not self._tickets:
            self._idle.set()

    def _expire(self, ticket: Ticket) -> None:
        """The backstop: the engine owes an answer. The job keeps its place until the engine lets go of it."""
        ticket.fail(DeadlinePassed("the deadline passed, and the engine has not answered; is it compiling?"))
        self._post(Cancel(id=ticket.job.id))
        ticket.call_later(self._hang_seconds, lambda _: self.stuck.set())
