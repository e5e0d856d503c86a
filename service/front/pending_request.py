"""One accepted job as its waiter sees it: pieces of text as they come, then exactly one end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import perf_counter_ns

from service.front.errors import LaunchboundError
from service.protocol.messages import Job, Outcome, Token


class PendingRequest:
    """One accepted job. `outcome_ns` is the instant its outcome was back in this process."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.outcome_ns = 0
        self._done: asyncio.Future[Outcome] = loop.create_future()
        self._tokens: list[Token] = []
        self._news: asyncio.Event | None = asyncio.Event() if job.stream else None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended for the one who waits for it."""
        return self._done.done()

    async def outcome(self) -> Outcome:
        """How the job ended; raises LaunchboundError where no outcome came from the engine."""
        return await self._done

    async def tokens(self) -> AsyncIterator[list[Token]]:
        """The pieces of a streaming job, as many at a time as there are, until it ends, well or not."""
        assert self._news is not None
        while True:
            await self._news.wait()
            self._news.clear()
            if self._tokens:
                tokens, self._tokens = self._tokens, []
                yield tokens
            if self._done.done():
                return

    def push(self, token: Token) -> None:
        """A piece of text arrived."""
        if self._news is not None and not self._done.done():
            self._tokens.append(token)
            self._news.set()

    def finish(self, outcome: Outcome) -> None:
        """The engine's last word."""
        self.outcome_ns = perf_counter_ns()
        if not self._done.done():
            self._done.set_result(outcome)
        self._end()

    def fail(self, error: LaunchboundError) -> None:
        """End without an outcome."""
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # a client that went away leaves nobody to retrieve it
        self._end()

    def call_later(self, seconds: float, callback: Callable[[PendingRequest], None]) -> None:
        """Call `callback` with this pending after `seconds`, unless the engine lets go of the job before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, callback, self)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._news is not None:
            self._news.set()
