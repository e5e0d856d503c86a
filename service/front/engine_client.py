"""The engine as the front uses it: admitted jobs go to it, and one PendingRequest each, which always ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic, perf_counter_ns

import msgspec

from service.front.admission import Admission
from service.front.errors import EngineLost, ShutDown
from service.front.listeners import Listener
from service.front.pause_lease import PauseLease
from service.front.pending_request import PendingRequest, PendingRequests
from service.front.process_watch import ProcessWatch
from service.front.silent_requests import GRACE_SECONDS, SilentRequests
from service.protocol.doing import Doing
from service.protocol.messages import Begun, Cancel, Job, Outcome, Paused, ToEngine, ToFront, Token
from service.protocol.status import EngineStatus, ModeStatus

log = logging.getLogger("launchbound.engine")


class EngineClient:
    """Sends admitted jobs to the current engine process, and routes each answer to its PendingRequest.

    `served`: some engine has had a mode ready. `last_death`: how the last one ended; None before the first.
    `warm_since`: when the present engine became warm, by `time.monotonic`; None where it is not.
    """

    def __init__(self, modes: list[str], max_queue: int, hang_seconds: float, listener: Listener) -> None:
        self.configured = modes
        self.engine: EngineStatus | None = None
        self.warm_since: float | None = None
        self.device = "unknown"
        self.last_death: str | None = None
        self.served = False
        self.retry_after_seconds = 2
        self._unfinished = PendingRequests()
        self.in_progress = self._unfinished.by_mode
        self.longest_wait_seconds = self._unfinished.longest_wait_seconds
        self.admission = Admission(modes, max_queue)
        self.modes = self.admission.modes
        self.ready_modes, self.warming = self.admission.ready, self.admission.warming
        self.pause = PauseLease(self._post)
        self.silent = SilentRequests(hang_seconds, self.cancel)
        self._drain_ends: float | None = None
        self._listener = listener
        self._send: Callable[[bytes], bool] | None = None
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
        return self.silent.doing

    def submit(self, job: Job, follows: bool = False) -> PendingRequest:
        """Accept `job`, which gets its id, and send it.

        `follows`: a further job of a request that was accepted, so that a drain does not refuse it. Raises
        Draining, ModeNotReady or QueueFull, and then nothing was sent.
        """
        if job.mode not in self.admission.open or len(self._unfinished) >= self.admission.max_queue:
            self._refuse(job.mode, follows=follows)
        pending = self._unfinished.add(job)
        self._post(pending.job)
        # The engine has it: what follows takes place while it works.
        left_seconds = (job.deadline_ns - perf_counter_ns()) / 1e9
        pending.call_later(left_seconds + GRACE_SECONDS, self.silent.expired)
        return pending

    def check_room(self) -> None:
        """Raise Draining, ModeNotReady or QueueFull where `submit` would refuse a job of any mode now."""
        self._refuse(None)

    def cancel(self, pending: PendingRequest) -> None:
        """Have the engine stop this job between two steps; its outcome still arrives."""
        if pending in self._unfinished:
            self._post(Cancel(id=pending.job.id))

    def waiting(self) -> int:
        """Accepted jobs that have not begun: the engine runs none while paused."""
        return self._unfinished.waiting(paused=self.pause.held)

    async def drain(self, seconds: float) -> None:
        """Refuse new jobs, wait for the unfinished ones, and fail those that have not ended in `seconds`.

        A second call waits no longer than the first would have.
        """
        self.admission.draining = True
        self.pause.break_off(ShutDown("the service is shutting down; try another instance"))
        if self._drain_ends is None:
            self._drain_ends = monotonic() + seconds
        try:
            async with asyncio.timeout(self._drain_ends - monotonic()):
                await self._unfinished.none_left()
        except TimeoutError:
            self.abandon()

    def abandon(self) -> None:
        """Shut down without waiting: every unfinished job is cancelled and fails with ShutDown."""
        self.admission.draining = True
        self._drain_ends = monotonic()
        self.pause.break_off(ShutDown("the service was shut down"))
        text = "the service was shut down before the answer was complete; send it again"
        cut_off = self._unfinished.fail_all(lambda: ShutDown(text))
        for pending in cut_off:
            self._post(Cancel(id=pending.job.id))
        if cut_off:
            log.error(
                "shut down before %d accepted requests were answered: LAUNCHBOUND_DRAIN_SECONDS is how long "
                "they may take",
                len(cut_off),
            )

    def _refuse(self, mode: str | None, follows: bool = False) -> None:
        """Raise what speaks against a job now."""
        refusal = self.admission.refusal(
            mode, len(self._unfinished), self.down_reason, self.retry_after_seconds, follows
        )
        if refusal is not None:
            raise refusal

    # ------------------------------------------------------------ for the supervisor

    def attach(self, send: Callable[[bytes], bool], engine_watch: ProcessWatch) -> asyncio.Future[str]:
        """A new engine process was started; `send` hands it a frame without blocking, False if not connected.

        Returns what becomes the reason where the engine is to be ended. A job that could not be sent because
        the engine has just ended fails with all others, in `lost`.
        """
        self._send = send
        return self.silent.attach(engine_watch)

    def detach(self) -> None:
        """The engine's socket is about to close."""
        self._send = None
        self.silent.detach()

    def received(self, frame: bytes) -> None:
        """One message from the engine. Raises msgspec.DecodeError for anything but a `ToFront`."""
        message = self._decode(frame)
        if isinstance(message, Token):
            self._unfinished.push(message)
        elif isinstance(message, Begun):
            self._unfinished.begin(message)
        elif isinstance(message, Outcome):
            self._unfinished.finish(message)
        elif isinstance(message, ModeStatus):
            self.served = self.served or message.state == "ready"
            self.admission.changed(message)
            self._listener.mode(message)
        elif isinstance(message, Paused):
            self.pause.answered(message)
        elif isinstance(message, Doing):
            self.silent.heard(message)
        else:
            self.engine = message
            self.device = message.device
            self.admission.connected()
            if message.warm and self.warm_since is None:
                self.warm_since = monotonic()
            self._listener.engine(message)

    def lost(self, reason: str, retry_after_seconds: int) -> None:
        """The engine process ended: its jobs fail, and no mode is ready until the next one reports it."""
        self.last_death, self.retry_after_seconds = reason, retry_after_seconds
        self.engine = self.warm_since = None
        self._send = None
        self.admission.disconnected()
        self._unfinished.fail_all(
            lambda: EngineLost(f"{reason}; send it again", retry_after_seconds=retry_after_seconds)
        )
        self.pause.break_off(EngineLost(f"{reason}; try again", retry_after_seconds=retry_after_seconds))
        self._listener.engine_lost()

    def _post(self, message: ToEngine) -> None:
        if self._send is not None:
            self._send(self._encode(message))
