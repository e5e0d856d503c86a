"""The engine as the front uses it: admitted jobs go to it, and one PendingRequest each, which always ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from itertools import count
from secrets import token_hex
from time import monotonic, perf_counter_ns
from typing import Any

import msgspec

from service.front.child_process import ProcessWatch
from service.front.errors import (
    DeadlinePassed,
    Draining,
    EngineLost,
    LaunchboundError,
    ModeNotReady,
    QueueFull,
    ShutDown,
)
from service.records import (
    SERVING,
    Begun,
    Cancel,
    Doing,
    EngineStatus,
    Job,
    ModeStatus,
    Outcome,
    Pause,
    Paused,
    Resume,
    ToEngine,
    ToFront,
    Token,
)

log = logging.getLogger("launchbound.engine")

GRACE_SECONDS = 1.0
"""How long after its deadline a job's outcome may still arrive before the front fails it."""


class EngineClient:
    """Sends admitted jobs to the current engine process, and routes each answer to its PendingRequest.

    `open` are the names of the modes that take a job now. `served`: some engine has had a mode ready.
    `last_failure`: how the last engine ended. `warm_since`: by `time.monotonic`.
    """

    def __init__(self, modes: list[str], max_queue: int, *listeners: Listener) -> None:
        self.configured = modes
        self.max_queue = max_queue
        self.modes: dict[str, ModeStatus] = {}
        self.open: frozenset[str] = frozenset()
        self.engine: EngineStatus | None = None
        self.warm_since: float | None = None
        self.device = "unknown"
        self.last_failure: str | None = None
        self.served = False
        self.retry_after_seconds = 2
        # Unique among all fronts: traces in one folder are named by these ids.
        self._prefix, self._numbers = token_hex(8), count(1)
        self._unfinished: dict[str, PendingRequest] = {}
        self._begun: set[str] | None = None
        self._none_left = asyncio.Event()
        self.pause = EnginePause(self._post)
        self._draining = False
        self._drain_ends: float | None = None
        self._listeners = listeners
        self._engine_watch: ProcessWatch | None = None
        self._announced = ""
        self._send: Callable[[bytes], bool] | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToFront).decode

    # ------------------------------------------------------------ for the routes

    @property
    def down_reason(self) -> str:
        """Why there is no engine to serve: how the last one ended, else what the first one does."""
        doing = self.doing
        return self.last_failure or f"the engine is {'starting' if doing is None else doing.what}"

    @property
    def doing(self) -> Doing | None:
        return self._engine_watch.doing if self._engine_watch is not None else None

    @property
    def draining(self) -> bool:
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self._settle()

    def state(self, mode: str) -> str:
        return self.modes[mode].state if mode in self.modes else "cold"

    def ready_modes(self) -> list[str]:
        return [name for name in self.configured if self.state(name) == "ready"]

    def warming(self) -> list[str]:
        return [name for name in self.configured if self.state(name) in ("cold", "warming")]

    def submit(self, job: Job, follows: bool = False) -> PendingRequest:
        """Accept `job`, which gets its id, and send it. Raises what `check` raises.

        `follows`: a further job of a request that was accepted, so that a drain does not refuse it.
        """
        if job.mode not in self.open or len(self._unfinished) >= self.max_queue:
            self.check(job.mode, follows)
        job = msgspec.structs.replace(job, id=f"{self._prefix}-{next(self._numbers)}")
        pending = self._unfinished[job.id] = PendingRequest(job, asyncio.get_running_loop())
        self._post(job)
        # From here on the engine works.
        left_seconds = (job.deadline_ns - perf_counter_ns()) / 1e9
        pending.call_later(left_seconds + GRACE_SECONDS, self._expired)
        return pending

    def cancel(self, pending: PendingRequest) -> None:
        """Stop this job between two steps; its outcome still arrives."""
        if pending.job.id in self._unfinished:
            self._post(Cancel(id=pending.job.id))

    def in_progress(self) -> Counter[str]:
        return Counter(pending.job.mode for pending in self._unfinished.values())

    def longest_wait_seconds(self) -> float:
        """How long ago the oldest unfinished job was sent; 0 where there is none."""
        oldest = next(iter(self._unfinished.values()), None)
        return (perf_counter_ns() - oldest.job.sent_ns) / 1e9 if oldest else 0.0

    def waiting(self) -> int:
        """Accepted jobs that have not begun: all but one, unless it is paused or reports which have."""
        if self._begun is not None:
            return len(self._unfinished) - len(self._begun)
        return max(0, len(self._unfinished) - (0 if self.pause.held else 1))

    async def drain(self, seconds: float) -> None:
        """Refuse new jobs, wait for the unfinished ones, and fail those that have not ended in `seconds`."""
        self.draining = True
        self.pause.break_off(ShutDown("the service is shutting down; try another instance"))
        if self._drain_ends is None:
            self._drain_ends = monotonic() + seconds
        try:
            async with asyncio.timeout(self._drain_ends - monotonic()):
                while self._unfinished:  # a route that waited for one may have sent its next one
                    self._none_left.clear()
                    await self._none_left.wait()
        except TimeoutError:
            self.abandon()

    def abandon(self) -> None:
        """Shut down at once: every unfinished job is cancelled and fails with ShutDown."""
        self.draining = True
        self._drain_ends = monotonic()
        self.pause.break_off(ShutDown("the service was shut down"))
        text = "the service was shut down before the answer was complete; send it again"
        if cut_off := self._fail_all(lambda: ShutDown(text)):
            log.error(
                "shut down before %d accepted requests were answered: LAUNCHBOUND_DRAIN_SECONDS is how long "
                "they may take",
                cut_off,
            )

    def check(self, mode: str | None, follows: bool = False) -> None:
        """Raise Draining, ModeNotReady or QueueFull where a job of `mode` (None: of any) is refused now."""
        if self._draining and not follows:
            raise Draining("the service is shutting down and takes no new requests; try another instance")
        if self.engine is None:
            raise ModeNotReady(
                f"{self.down_reason}; retry in {self.retry_after_seconds} s",
                type="engine_not_ready",
                retry_after_seconds=self.retry_after_seconds,
            )
        if mode is not None and self.state(mode) != "ready":
            raise self._not_ready(mode)
        if len(self._unfinished) >= self.max_queue:
            message = f"{self.max_queue} requests are accepted and unfinished; send fewer at a time"
            raise QueueFull(message, retry_after_seconds=1)

    def _not_ready(self, mode: str) -> ModeNotReady:
        state = self.state(mode)
        ready = f"ready: {', '.join(self.ready_modes()) or 'none yet'}"
        if state == "failed":
            reason = self.modes[mode].detail or "no reason given"
            message = f"mode '{mode}' failed to become ready ({reason}); {ready}"
            return ModeNotReady(message, type="mode_failed", param="mode", retry_after_seconds=60)
        return ModeNotReady(f"mode '{mode}' is {state}; {ready}", param="mode")

    def _settle(self) -> None:
        serves = self.engine is not None and not self._draining
        self.open = frozenset(self.ready_modes()) if serves else frozenset()

    def _expired(self, pending: PendingRequest) -> None:
        pending.fail(DeadlinePassed("the deadline passed, and the engine has not answered; is it compiling?"))
        self.cancel(pending)

    # ------------------------------------------------------------ for the supervisor

    def attach(self, send: Callable[[bytes], bool], engine_watch: ProcessWatch) -> None:
        """A new engine process was started; `send` sends it a frame. What cannot be sent fails in `lost`."""
        self._send = send
        self._engine_watch, self._announced = engine_watch, ""

    def detach(self) -> None:
        self._send = self._engine_watch = None

    def received(self, frame: bytes) -> None:
        """One message from the engine. Raises msgspec.DecodeError for anything but a `ToFront`."""
        message = self._decode(frame)
        if isinstance(message, Token):
            if (pending := self._unfinished.get(message.id)) is not None:
                pending.push(message)
        elif isinstance(message, Begun):
            self._begun = (self._begun or set()) | (self._unfinished.keys() & message.ids)
        elif isinstance(message, Outcome):
            self._finish(message)
        elif isinstance(message, ModeStatus):
            self.served = self.served or message.state == "ready"
            self.modes[message.mode] = message
            self._settle()
            for listener in self._listeners:
                listener.mode(message)
        elif isinstance(message, Paused):
            self.pause.answered(message)
        elif isinstance(message, Doing):
            self._heard(message)
        else:
            self.engine = message
            self.device = message.device
            self._settle()
            if message.warm and self.warm_since is None:
                self.warm_since = monotonic()
            for listener in self._listeners:
                listener.engine(message)

    def lost(self, reason: str, retry_after_seconds: int) -> None:
        """The engine process ended: its jobs fail, and no mode is ready until the next engine reports it."""
        self.last_failure, self.retry_after_seconds = reason, retry_after_seconds
        self.engine = self.warm_since = None
        self._send = None
        self.modes.clear()
        self._settle()

        def lost(remedy: str) -> EngineLost:
            return EngineLost(f"{reason}; {remedy}", retry_after_seconds=retry_after_seconds)

        self._fail_all(lambda: lost("send it again"))
        self.pause.break_off(lost("try again"))
        for listener in self._listeners:
            listener.engine_lost()

    def _heard(self, doing: Doing) -> None:
        if self._engine_watch is not None:
            self._engine_watch.heard(doing)
            if doing.what not in (SERVING, self._announced):
                self._announced = doing.what
                log.info("the engine is %s (given up after %.0f s)", doing.what, doing.limit_seconds)

    def _finish(self, outcome: Outcome) -> None:
        if self._begun is not None:
            self._begun.discard(outcome.id)
        if (pending := self._unfinished.pop(outcome.id, None)) is not None:
            pending.finish(outcome)
        if not self._unfinished:
            self._none_left.set()

    def _fail_all(self, error: Callable[[], LaunchboundError]) -> int:
        """Cancel all unfinished jobs, which end each by an error of its own; returns how many."""
        ended = list(self._unfinished.values())
        self._unfinished.clear()
        self._begun = None
        self._none_left.set()
        for pending in ended:
            self._post(Cancel(id=pending.job.id))
            pending.fail(error())
        return len(ended)

    def _post(self, message: ToEngine) -> None:
        if self._send is not None:
            self._send(self._encode(message))


class Listener:
    """Gets every status that the engine sends, also its first; does nothing by itself."""

    def engine(self, status: EngineStatus) -> None: ...

    def mode(self, status: ModeStatus) -> None: ...

    def engine_lost(self) -> None:
        """The engine process ended; the next one starts from zero."""


class EnginePause:
    """At most one pause of the engine. While there is one, `lost` is the future of its untimely end."""

    def __init__(self, post: Callable[[ToEngine], None]) -> None:
        self._post = post
        self._id = 0
        self._begun: asyncio.Future[None] | None = None
        self.lost: asyncio.Future[LaunchboundError] | None = None

    @property
    def held(self) -> bool:
        return self._begun is not None and self._begun.done()

    async def begin(self) -> None:
        """Pause the engine after what it was sent before. Raises what ended the wait, such as EngineLost."""
        loop = asyncio.get_running_loop()
        self._id += 1
        self._begun = loop.create_future()
        self.lost = loop.create_future()
        self._post(Pause(id=self._id))
        ends: set[asyncio.Future[Any]] = {self._begun, self.lost}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.lost.done():
            raise self.lost.result()

    def end(self) -> None:
        """Have the engine serve again, or withdraw a pause that has not begun."""
        if self._begun is not None:
            self._begun = self.lost = None
            self._post(Resume())

    def answered(self, answer: Paused) -> None:
        if self._begun is not None and answer.id == self._id and not self._begun.done():
            self._begun.set_result(None)

    def break_off(self, error: LaunchboundError) -> None:
        """End the pause before its time: `lost` becomes `error`."""
        if self.lost is not None and not self.lost.done():
            self.lost.set_result(error)


class PendingRequest:
    """One accepted job. `outcome_ns`: when its outcome arrived in this process."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.outcome_ns = 0
        self._done: asyncio.Future[Outcome] = loop.create_future()
        self._tokens: list[Token] = []
        self._awaited: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def done(self) -> bool:
        return self._done.done()

    async def outcome(self) -> Outcome:
        return await self._done

    async def tokens(self) -> list[Token]:
        """What has arrived of a streaming job since the last call; none: it has ended, or failed."""
        if not self._tokens and not self._done.done():
            self._awaited = asyncio.get_running_loop().create_future()
            await self._awaited
        tokens, self._tokens = self._tokens, []
        return tokens

    def push(self, token: Token) -> None:
        if not self._done.done():
            self._tokens.append(token)
            self._wake()

    def finish(self, outcome: Outcome) -> None:
        self.outcome_ns = perf_counter_ns()
        if not self._done.done():
            self._done.set_result(outcome)
        self._end()

    def fail(self, error: LaunchboundError) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # else asyncio warns where no client is left to retrieve it
        self._end()

    def call_later(self, seconds: float, callback: Callable[[PendingRequest], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, callback, self)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)
