"""One accepted job from the side that waits for it: tokens as they arrive, then exactly one end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import perf_counter_ns

from service.front.errors import LaunchboundError
from service.protocol.messages import Job, Outcome, Token


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
