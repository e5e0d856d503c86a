"""An engine without a front: jobs from a list, outcomes into one; for checks and tests in one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns

import msgspec

from service.records import Doing, EngineStatus, Job, ModeStatus, Outcome, ToFront, Token

NO_DEADLINE_NS = 2**62


class LocalInbox:
    """An `Inbox` without a socket: yields `jobs` once the engine is warm, then reports that it is stopped.

    `watch` is called with every message that is sent.
    """

    def __init__(self, jobs: Iterable[Job], watch: Callable[[ToFront], None] | None = None) -> None:
        self._jobs = deque(jobs)
        self._watch = watch
        self._warm = False
        self.paused = False
        self.outcomes: list[Outcome] = []
        self.tokens: list[Token] = []
        self.modes: dict[str, ModeStatus] = {}

    def receive(self, timeout_milliseconds: int = 0) -> None:
        """Nothing arrives from outside."""

    def announce(self, doing: Doing) -> None:
        """Nobody waits for a sign of life."""

    def expect_steps_of(self, seconds: float, busy_seconds: float) -> None:
        """Nobody waits for a step."""

    def take(self) -> Job | None:
        """The next job, as if it had been sent this moment."""
        if not self._warm or not self._jobs:
            return None
        return msgspec.structs.replace(self._jobs.popleft(), sent_ns=perf_counter_ns())

    @property
    def next_job(self) -> Job | None:
        """The next job, which stays where it is."""
        return self._jobs[0] if self._warm and self._jobs else None

    def join(self) -> Job:
        """The next job, as `take` returns it."""
        return msgspec.structs.replace(self._jobs.popleft(), sent_ns=perf_counter_ns())

    def left(self, job: Job) -> None:
        """Nobody cancels a job."""

    @property
    def idle(self) -> bool:
        """Always."""
        return True

    @property
    def stopped(self) -> bool:
        """Whether all jobs have been taken."""
        return self._warm and not self._jobs

    def is_cancelled(self, job: Job) -> bool:
        """Never."""
        return False

    def send(self, message: ToFront) -> None:
        """Keep `message` in the list or mapping of its kind."""
        if isinstance(message, Outcome):
            self.outcomes.append(message)
        elif isinstance(message, Token):
            self.tokens.append(message)
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
