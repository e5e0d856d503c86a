"""The engine's end of the IPC socket: messages received, in order, and messages sent back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns

import msgspec

from service.frames import connect
from service.records import (
    SERVING,
    Cancel,
    Doing,
    EngineStatus,
    Job,
    ModeStatus,
    Outcome,
    Pause,
    Paused,
    Resume,
    Stop,
    ToEngine,
    ToFront,
)

BEAT_NS = 1_000_000_000
"""How often the front hears of an engine that serves, at most."""

STEP_LIMIT_SECONDS = 60.0
"""Within this time an engine that serves polls its inbox, unless its steps are slower. It may be swapped."""


class Inbox:
    """A socket to the front that never blocks while there is work: not even where the front stalls."""

    def __init__(self, address: str) -> None:
        self._stream = connect(address)
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting: deque[Job | Pause] = deque()
        self.paused = False
        self._running: set[str] = set()
        self._cancelled: set[str] = set()
        self.expect_steps_of(0.0)
        self._doing = self._serving
        self._sent: Doing | None = None
        self._send_ns = 0
        self.stopped = False

    def announce(self, doing: Doing) -> None:
        """Send the front what this thread does until it next takes a message."""
        self._doing = doing
        self._send_doing(perf_counter_ns())

    def expect_steps_of(self, seconds: float) -> None:
        """Between two calls of `receive`, this thread may take so long, or STEP_LIMIT_SECONDS."""
        self._serving = Doing(what=SERVING, limit_seconds=max(STEP_LIMIT_SECONDS, seconds))

    def _send_doing(self, now_ns: int) -> None:
        if self._doing != self._sent or now_ns > self._send_ns:
            self._sent = self._doing
            self._send_ns = now_ns + BEAT_NS
            self.send(self._doing)

    def receive(self, timeout_milliseconds: int = 0) -> None:
        """Receive what has arrived, waiting up to `timeout_milliseconds`. A front that has gone is a Stop."""
        now_ns = perf_counter_ns()
        if now_ns > self._send_ns:
            self._send_doing(now_ns)
        if not self._stream.wait(timeout_milliseconds):
            return
        try:
            for frame in self._stream.receive():
                self._handle(self._decode(frame))
        except EOFError:
            self.stopped = True

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, Job | Pause):
            self._waiting.append(message)
        elif isinstance(message, Cancel):
            waiting = {job.id for job in self._waiting if isinstance(job, Job)}
            if message.id in self._running | waiting:  # else it has ended meanwhile
                self._cancelled.add(message.id)
        elif isinstance(message, Resume):
            self.paused = False
            self._waiting = deque(waiting for waiting in self._waiting if not isinstance(waiting, Pause))
        elif isinstance(message, Stop):
            self.stopped = True

    def take(self) -> Job | None:
        """What has waited longest; a job is from now on the running one. None while paused.

        A Pause is queued like a job: at the head of the queue it begins, and `Paused` is sent.
        """
        self._doing = self._serving
        if self.paused:
            return None
        self._cancelled -= self._running
        self._running.clear()
        first = self._waiting.popleft() if self._waiting else None
        if isinstance(first, Pause):
            self.paused = True
            self.send(Paused(id=first.id))
            first = None
        if isinstance(first, Job):
            self._running.add(first.id)
            if self._sent is not self._doing:
                self._send_doing(perf_counter_ns())
        return first

    @property
    def next_job(self) -> Job | None:
        """What `take` would return, if that is a job; it stays where it is."""
        first = self._waiting[0] if self._waiting and not self.paused else None
        return first if isinstance(first, Job) else None

    def join(self) -> Job:
        """Take `next_job`, which there is, to run beside those that run; `left` once it has ended."""
        job = self._waiting.popleft()
        assert isinstance(job, Job)
        self._running.add(job.id)
        return job

    def left(self, job: Job) -> None:
        self._running.discard(job.id)
        self._cancelled.discard(job.id)

    @property
    def idle(self) -> bool:
        return not self._waiting

    def is_cancelled(self, job: Job) -> bool:
        """Whether a Cancel of `job`, which waits or runs, has been received."""
        return job.id in self._cancelled

    def send(self, message: ToFront) -> None:
        """Send `message`; what the front does not take at once leaves with the next call."""
        try:
            self._stream.send(self._encode(message))
        except ConnectionError:
            self.stopped = True  # the front has gone, and nobody is left to serve

    def close(self) -> None:
        """Give the front up to a second to take what was sent, then disconnect."""
        self._stream.close(linger_seconds=1.0)


NO_DEADLINE_NS = 2**62


class LocalInbox:
    """An `Inbox` without a front, for checks: yields `jobs` once the engine is warm, then is stopped.

    `watch` is called with every message that is sent.
    """

    def __init__(self, jobs: Iterable[Job], watch: Callable[[ToFront], None] | None = None) -> None:
        self._jobs = deque(jobs)
        self._watch = watch
        self._warm = False
        self.paused = False
        self.outcomes: list[Outcome] = []
        self.modes: dict[str, ModeStatus] = {}

    def receive(self, timeout_milliseconds: int = 0) -> None:
        """Nothing arrives from outside."""

    def announce(self, doing: Doing) -> None:
        """Nobody waits."""

    def expect_steps_of(self, seconds: float) -> None:
        """Nobody waits for a step."""

    def take(self) -> Job | None:
        return self.join() if self.next_job is not None else None

    @property
    def next_job(self) -> Job | None:
        return self._jobs[0] if self._warm and self._jobs else None

    def join(self) -> Job:
        """The next job, as if it had been sent this moment."""
        return msgspec.structs.replace(self._jobs.popleft(), sent_ns=perf_counter_ns())

    def left(self, job: Job) -> None:
        """Nobody cancels a job."""

    @property
    def idle(self) -> bool:
        return True

    @property
    def stopped(self) -> bool:
        return self._warm and not self._jobs

    def is_cancelled(self, job: Job) -> bool:
        return False

    def send(self, message: ToFront) -> None:
        if isinstance(message, Outcome):
            self.outcomes.append(message)
        elif isinstance(message, ModeStatus):
            self.modes[message.mode] = message
        elif isinstance(message, EngineStatus):
            self._warm = message.warm
        if self._watch:
            self._watch(message)


def local_job(
    identity: str, mode: str, prompts: Sequence[str | list[int]], max_new_tokens: int, **options: object
) -> Job:
    """A job for a LocalInbox: without a deadline, its `sent_ns` set when it is taken."""
    fields = {"id": identity, "mode": mode, "prompts": prompts, "max_new_tokens": max_new_tokens}
    instants = {"type": "job", "sent_ns": 0, "deadline_ns": NO_DEADLINE_NS}
    return msgspec.convert({**fields, **instants, **options}, Job)
