"""The accepted jobs, each from the side that waits for it: tokens as they arrive, then exactly one end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from itertools import count
from secrets import token_hex
from time import perf_counter_ns

import msgspec

from service.front.errors import LaunchboundError
from service.records import Begun, Job, Outcome, Token


class PendingRequest:
    """One accepted job. `outcome_ns`: when its outcome arrived in this process."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.outcome_ns = 0
        self._done: asyncio.Future[Outcome] = loop.create_future()
        self._tokens: list[Token] = []
        self._changed: asyncio.Event | None = asyncio.Event() if job.stream else None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def done(self) -> bool:
        """Whether it has an outcome or has failed."""
        return self._done.done()

    async def outcome(self) -> Outcome:
        """How the job ended; raises LaunchboundError where no outcome came from the engine."""
        return await self._done

    async def tokens(self) -> AsyncIterator[list[Token]]:
        """The tokens of a streaming job, in batches as they arrive, until it ends or fails."""
        assert self._changed is not None
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._tokens:
                tokens = self._tokens
                self._tokens = []
                yield tokens
            if self._done.done():
                return

    def push(self, token: Token) -> None:
        """A token arrived."""
        if self._changed is not None and not self._done.done():
            self._tokens.append(token)
            self._changed.set()

    def finish(self, outcome: Outcome) -> None:
        """The outcome arrived."""
        self.outcome_ns = perf_counter_ns()
        if not self._done.done():
            self._done.set_result(outcome)
        self._end()

    def fail(self, error: LaunchboundError) -> None:
        """End without an outcome: `outcome` raises `error`."""
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # else asyncio warns where no client is left to retrieve it
        self._end()

    def call_later(self, seconds: float, callback: Callable[[PendingRequest], None]) -> None:
        """Call `callback` with this request after `seconds`, unless it ends before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, callback, self)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._changed is not None:
            self._changed.set()


class PendingRequests:
    """The accepted jobs that the engine has not ended, by id, in the order in which they were sent."""

    def __init__(self) -> None:
        # Traces of earlier and other fronts, which lie in the same folder, are named by ids too.
        self._prefix = token_hex(8)
        self._numbers = count(1)
        self._by_id: dict[str, PendingRequest] = {}
        self._begun: set[str] = set()
        self._begun_known = False
        self._none_left = asyncio.Event()
        self._none_left.set()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, pending: PendingRequest) -> bool:
        return pending.job.id in self._by_id

    def add(self, job: Job) -> PendingRequest:
        """`job` is accepted, and gets an id of its own."""
        job = msgspec.structs.replace(job, id=f"{self._prefix}-{next(self._numbers)}")
        pending = self._by_id[job.id] = PendingRequest(job, asyncio.get_running_loop())
        self._none_left.clear()
        return pending

    def push(self, token: Token) -> None:
        """A token arrived; of a job that has ended meanwhile it is dropped."""
        if (pending := self._by_id.get(token.id)) is not None:
            pending.push(token)

    def begin(self, begun: Begun) -> None:
        """The engine has begun to run these jobs."""
        self._begun_known = True
        self._begun.update(self._by_id.keys() & begun.ids)

    def waiting(self, paused: bool) -> int:
        """How many have not begun: all but one, which runs unless the engine is paused.

        One that merges jobs says which have begun.
        """
        if self._begun_known:
            return len(self._by_id) - len(self._begun)
        return max(0, len(self._by_id) - (0 if paused else 1))

    def finish(self, outcome: Outcome) -> None:
        """An outcome arrived: the engine is done with this job."""
        self._begun.discard(outcome.id)
        if (pending := self._by_id.pop(outcome.id, None)) is not None:
            pending.finish(outcome)
        if not self._by_id:
            self._none_left.set()

    def fail_all(self, error: Callable[[], LaunchboundError]) -> list[PendingRequest]:
        """End all of them without an outcome, each by an error of its own; returns them."""
        ended = list(self._by_id.values())
        self._by_id.clear()
        self._begun.clear()
        self._begun_known = False
        self._none_left.set()
        for pending in ended:
            pending.fail(error())
        return ended

    def by_mode(self) -> Counter[str]:
        """How many there are of each mode."""
        return Counter(pending.job.mode for pending in self._by_id.values())

    def longest_wait_seconds(self) -> float:
        """How long ago the oldest was sent; 0 where there is none."""
        oldest = next(iter(self._by_id.values()), None)
        return (perf_counter_ns() - oldest.job.sent_ns) / 1e9 if oldest else 0.0

    async def none_left(self) -> None:
        """Wait until all have ended.

        Who waits for the end of a job goes on first, and may have sent the next one of its request.
        """
        while self._by_id:
            await self._none_left.wait()
