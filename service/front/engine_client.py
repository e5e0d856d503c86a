"""The front's side of the border: bounded admission, and one pending per job that always ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from time import monotonic, perf_counter_ns
from typing import Protocol

import msgspec

from service.front.errors import DeadlinePassed, Draining, EngineLost, ModeNotReady, QueueFull
from service.front.pause_lease import PauseLease
from service.front.pending_request import PendingRequest
from service.protocol.messages import Cancel, Job, Outcome, Paused, ToEngine, ToFront, Token
from service.protocol.status import EngineStatus, ModeStatus

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
    """Admits jobs, sends them through the current engine life, and gives each answer to its pending."""

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
        self.pause = PauseLease(self._post)
        self._max_queue, self._hang_seconds, self._listener = max_queue, hang_seconds, listener
        self._unfinished: dict[str, PendingRequest] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._send: Callable[[bytes], bool] | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToFront).decode

    # ------------------------------------------------------------ for the routes

    def submit(self, job: Job) -> PendingRequest:
        """Accept and send `job`; its id is changed where a job of that id is already on its way.

        Raises Draining, ModeNotReady or QueueFull, and then nothing was sent.
        """
        self._admit(job.mode)
        number = 1
        while job.id in self._unfinished:
            number += 1
            job = msgspec.structs.replace(job, id=f"{job.id.partition('#')[0]}#{number}")
        pending = PendingRequest(job, asyncio.get_running_loop())
        self._unfinished[job.id] = pending
        self._idle.clear()
        pending.call_later((job.deadline_ns - perf_counter_ns()) / 1e9 + GRACE_SECONDS, self._expire)
        self._post(job)
        return pending

    def cancel(self, pending: PendingRequest) -> None:
        """Ask the engine to stop this job between two steps; its outcome still comes."""
        if pending.job.id in self._unfinished:
            self._post(Cancel(id=pending.job.id))

    def in_progress(self) -> Counter[str]:
        """Accepted and unfinished jobs by mode."""
        return Counter(pending.job.mode for pending in self._unfinished.values())

    def longest_wait_seconds(self) -> float:
        """How long the oldest unfinished job has been on its way; 0 where there is none."""
        oldest = next(iter(self._unfinished.values()), None)
        return (perf_counter_ns() - oldest.job.sent_ns) / 1e9 if oldest else 0.0

    def warming(self) -> list[str]:
        """Names of the modes that are yet to become ready, or to fail."""
        return [name for name in self.configured if self._state(name) in ("cold", "warming")]

    def waiting(self) -> int:
        """Accepted jobs that have not begun: the engine runs one at a time, and at rest none."""
        return max(0, len(self._unfinished) - (0 if self.pause.held else 1))

    def ready_modes(self) -> list[str]:
        """Names of the modes that serve now, in the ladder's order."""
        return [name for name in self.configured if self._state(name) == "ready"]

    async def drain(self, seconds: float) -> None:
        """Refuse what is new, wait for what is running, and give up what has not ended in `seconds`.

        Called again, it waits for no longer than the first call would have.
        """
        self.draining = True
        self.pause.break_off(Draining("the service is shutting down; try another instance"))
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
        self.pause.break_off(Draining("the service was shut down"))
        unfinished, self._unfinished = list(self._unfinished.values()), {}
        for pending in unfinished:
            self._post(Cancel(id=pending.job.id))
            pending.fail(Draining("the service was shut down before the answer was complete; send it again"))
        self._idle.set()

    def _admit(self, mode: str) -> None:
        if self.draining:
            raise Draining("the service is shutting down and takes no new requests; try another instance")
        if self.engine is None or self._send is None:
            raise ModeNotReady(
                f"{self.down_reason}; retry in {self.retry_after_seconds} s",
                type="engine_not_ready",
                retry_after_seconds=self.retry_after_seconds,
            )
        state = self._state(mode)
        if state != "ready":
            raise self._not_ready(mode, state)
        if len(self._unfinished) >= self._max_queue:
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
            if (pending := self._unfinished.get(message.id)) is not None:
                pending.push(message)
        elif isinstance(message, Outcome):
            if (pending := self._unfinished.get(message.id)) is not None:
                self._forget(message.id)
                pending.finish(message)
        elif isinstance(message, ModeStatus):
            if self._state(message.mode) != message.state:
                log.info("mode %s: %s %s", message.mode, message.state, message.detail or "")
            self.modes[message.mode] = message
            self._listener.mode(message)
        elif isinstance(message, Paused):
            self.pause.answered(message)
        else:
            self.engine, self.device = message, message.device
            self._listener.engine(message)

    def lost(self, reason: str, retry_after_seconds: int) -> None:
        """The engine life ended: everything it had fails, and nothing is ready until the next says so."""
        self.down_reason, self.retry_after_seconds = reason, retry_after_seconds
        self.engine, self._send = None, None
        self.modes.clear()
        unfinished, self._unfinished = list(self._unfinished.values()), {}
        self._idle.set()
        for pending in unfinished:
            pending.fail(EngineLost(f"{reason}; send it again", retry_after_seconds=retry_after_seconds))
        self.pause.break_off(EngineLost(f"{reason}; try again", retry_after_seconds=retry_after_seconds))
        self._listener.engine_lost()

    def _post(self, message: ToEngine) -> None:
        if self._send is not None:
            self._send(self._encode(message))

    def _forget(self, job_id: str) -> None:
        self._unfinished.pop(job_id, None)
        if not self._unfinished:
            self._idle.set()

    def _expire(self, pending: PendingRequest) -> None:
        """The backstop: the engine owes an answer. The job keeps its place until the engine lets go of it."""
        pending.fail(DeadlinePassed("the deadline passed, and the engine has not answered; is it compiling?"))
        self._post(Cancel(id=pending.job.id))
        pending.call_later(self._hang_seconds, lambda _: self.stuck.set())
