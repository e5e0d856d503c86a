"""The engine as the front uses it: bounded admission, and one PendingRequest per job that always ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from time import monotonic, perf_counter_ns
from typing import Protocol

import msgspec

from service.front.errors import (
    DeadlinePassed,
    Draining,
    EngineLost,
    LaunchboundError,
    ModeNotReady,
    QueueFull,
)
from service.front.floor_request import FloorRequest
from service.front.pause_lease import PauseLease
from service.front.pending_request import PendingRequest
from service.front.process_watch import ProcessWatch
from service.protocol.doing import SERVING, Doing
from service.protocol.messages import (
    Calibrated,
    Cancel,
    FloorSamples,
    Job,
    Outcome,
    Paused,
    ToEngine,
    ToFront,
    Token,
)
from service.protocol.status import EngineStatus, ModeStatus

log = logging.getLogger("launchbound.engine_client")

GRACE_SECONDS = 1.0
"""How long after its deadline a job's outcome may still arrive before the front fails it."""


class Listener(Protocol):
    """Is called with every status that the engine sends."""

    def engine(self, status: EngineStatus) -> None:
        """The engine connected, or its status changed."""

    def mode(self, status: ModeStatus) -> None:
        """A mode changed."""

    def engine_lost(self) -> None:
        """The engine process ended; the next one starts from zero."""


class EngineClient:
    """Admits jobs, sends them to the current engine process, and routes each answer to its PendingRequest.

    `served`: some engine has had a mode ready. `last_death`: how the last one ended; None before the first.
    `warm_since`: when the present engine became warm, by `time.monotonic`; None where it is not.
    """

    def __init__(self, modes: list[str], max_queue: int, hang_seconds: float, listener: Listener) -> None:
        self.configured = modes
        self.engine: EngineStatus | None = None
        self.warm_since: float | None = None
        self.device = "unknown"
        self.modes: dict[str, ModeStatus] = {}
        self.last_death: str | None = None
        self.served = False
        self.retry_after_seconds = 2
        self.draining = False
        self._drain_ends: float | None = None
        self.pause = PauseLease(self._post)
        self._floors = FloorRequest(self._post)
        self._max_queue = max_queue
        self._hang_seconds = hang_seconds
        self._listener = listener
        self._unfinished: dict[str, PendingRequest] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._send: Callable[[bytes], bool] | None = None
        self._watch: ProcessWatch | None = None
        self._stuck: asyncio.Future[str] | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToFront).decode

    # ------------------------------------------------------------ for the routes

    @property
    def down_reason(self) -> str:
        """Why there is no engine to serve: how the last one ended, else what the first one does."""
        doing = self.doing
        return self.last_death or f"the engine is {'starting' if doing is None else doing.what}"

    @property
    def doing(self) -> Doing | None:
        """What the engine last announced to do; None where there is no engine process."""
        return self._watch.doing if self._watch is not None else None

    def submit(self, job: Job) -> PendingRequest:
        """Accept and send `job`; its id is changed where an unfinished job has the same.

        Raises Draining, ModeNotReady or QueueFull, and then nothing was sent.
        """
        self._admit(job.mode)
        number = 1
        while job.id in self._unfinished:
            number += 1
            job = msgspec.structs.replace(job, id=f"{job.id.partition('#')[0]}#{number}")
        pending = PendingRequest(job, asyncio.get_running_loop())
        self._unfinished[job.id] = pending
        self._post(job)
        # The engine has it: what follows takes place while it works.
        self._idle.clear()
        pending.call_later((job.deadline_ns - perf_counter_ns()) / 1e9 + GRACE_SECONDS, self._expire)
        return pending

    def check_room(self) -> None:
        """Raise Draining, ModeNotReady or QueueFull where `submit` would refuse a job of any mode now."""
        self._admit_any()
        if len(self._unfinished) >= self._max_queue:
            raise QueueFull(
                f"{self._max_queue} requests are accepted and unfinished; send fewer at a time",
                retry_after_seconds=1,
            )

    def cancel(self, pending: PendingRequest) -> None:
        """Have the engine stop this job between two steps; its outcome still arrives."""
        if pending.job.id in self._unfinished:
            self._post(Cancel(id=pending.job.id))

    async def calibrate(self) -> list[FloorSamples]:
        """The floors of all modes, taken anew. Raises Draining, ModeNotReady, or EngineLost where it ends."""
        self._admit_any()
        return await self._floors.take()

    def in_progress(self) -> Counter[str]:
        """Accepted and unfinished jobs by mode."""
        return Counter(pending.job.mode for pending in self._unfinished.values())

    def longest_wait_seconds(self) -> float:
        """How long ago the oldest unfinished job was sent; 0 where there is none."""
        oldest = next(iter(self._unfinished.values()), None)
        return (perf_counter_ns() - oldest.job.sent_ns) / 1e9 if oldest else 0.0

    def warming(self) -> list[str]:
        """Names of the modes that are neither ready nor failed."""
        return [name for name in self.configured if self._state(name) in ("cold", "warming")]

    def waiting(self) -> int:
        """Accepted jobs that have not begun: the engine runs one at a time, and none while paused."""
        return max(0, len(self._unfinished) - (0 if self.pause.held else 1))

    def ready_modes(self) -> list[str]:
        """Names of the modes that serve now, in the ladder's order."""
        return [name for name in self.configured if self._state(name) == "ready"]

    async def drain(self, seconds: float) -> None:
        """Refuse new jobs, wait for the unfinished ones, and fail those that have not ended in `seconds`.

        A second call waits no longer than the first would have.
        """
        self.draining = True
        self._break_off(Draining("the service is shutting down; try another instance"))
        if self._drain_ends is None:
            self._drain_ends = monotonic() + seconds
        try:
            async with asyncio.timeout(self._drain_ends - monotonic()):
                await self._idle.wait()
        except TimeoutError:
            self.abandon()

    def abandon(self) -> None:
        """Shut down without waiting: every unfinished job is cancelled and fails with Draining."""
        self.draining = True
        self._drain_ends = monotonic()
        self._break_off(Draining("the service was shut down"))
        unfinished = list(self._unfinished.values())
        self._unfinished = {}
        for pending in unfinished:
            self._post(Cancel(id=pending.job.id))
            pending.fail(Draining("the service was shut down before the answer was complete; send it again"))
        self._idle.set()

    def _admit_any(self) -> None:
        if self.draining:
            raise Draining("the service is shutting down and takes no new requests; try another instance")
        if self.engine is None or self._send is None:
            raise ModeNotReady(
                f"{self.down_reason}; retry in {self.retry_after_seconds} s",
                type="engine_not_ready",
                retry_after_seconds=self.retry_after_seconds,
            )

    def _admit(self, mode: str) -> None:
        self._admit_any()
        state = self._state(mode)
        if state != "ready":
            raise self._not_ready(mode, state)
        self.check_room()

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

    def attach(self, send: Callable[[bytes], bool], engine_watch: ProcessWatch) -> asyncio.Future[str]:
        """A new engine process was started; `send` hands it a frame without blocking, False if not connected.

        Returns what becomes the reason where the engine is to be ended. A job that could not be sent because
        the engine has just ended fails with all others, in `lost`.
        """
        self._send = send
        self._watch = engine_watch
        self._stuck = asyncio.get_running_loop().create_future()
        return self._stuck

    def detach(self) -> None:
        """The engine's socket is about to close."""
        self._send = self._watch = self._stuck = None

    def received(self, frame: bytes) -> None:
        """One message from the engine. Raises msgspec.DecodeError for anything but a `ToFront`."""
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
            self.served = self.served or message.state == "ready"
            self.modes[message.mode] = message
            self._listener.mode(message)
        elif isinstance(message, Paused):
            self.pause.answered(message)
        elif isinstance(message, Calibrated):
            self._floors.answered(message)
        elif isinstance(message, Doing):
            if self._watch is not None:
                self._watch.heard(message)
        else:
            self.engine = message
            if message.warm and self.warm_since is None:
                self.warm_since = monotonic()
            self.device = message.device
            self._listener.engine(message)

    def lost(self, reason: str, retry_after_seconds: int) -> None:
        """The engine process ended: its jobs fail, and no mode is ready until the next one reports it."""
        self.last_death, self.retry_after_seconds = reason, retry_after_seconds
        self.engine = self.warm_since = None
        self._send = None
        self.modes.clear()
        unfinished = list(self._unfinished.values())
        self._unfinished = {}
        self._idle.set()
        for pending in unfinished:
            pending.fail(EngineLost(f"{reason}; send it again", retry_after_seconds=retry_after_seconds))
        self._break_off(EngineLost(f"{reason}; try again", retry_after_seconds=retry_after_seconds))
        self._listener.engine_lost()

    def _break_off(self, error: LaunchboundError) -> None:
        self.pause.break_off(error)
        self._floors.break_off(error)

    def _post(self, message: ToEngine) -> None:
        if self._send is not None:
            self._send(self._encode(message))

    def _forget(self, job_id: str) -> None:
        self._unfinished.pop(job_id, None)
        if not self._unfinished:
            self._idle.set()

    def _expire(self, pending: PendingRequest) -> None:
        """The engine did not end the job at its deadline; it stays unfinished until its outcome arrives."""
        pending.fail(DeadlinePassed("the deadline passed, and the engine has not answered; is it compiling?"))
        self._post(Cancel(id=pending.job.id))
        pending.call_later(self._hang_seconds, self._missed)

    def _missed(self, pending: PendingRequest) -> None:
        """The engine has not ended the job long after its deadline: it lost it, unless it is at work on what
        it announced, such as a compilation, and has not looked at its jobs since.
        """
        doing = self.doing
        if doing is not None and doing.what != SERVING:
            pending.call_later(self._hang_seconds, self._missed)
        elif self._stuck is not None and not self._stuck.done():
            self._stuck.set_result(f"has not answered a request {self._hang_seconds:g} s after its deadline")
