"""Requests without an answer from the engine: they fail at their deadline, and who lost one is ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from service.front.errors import DeadlinePassed
from service.front.pending_request import PendingRequest
from service.front.process_watch import ProcessWatch
from service.protocol.doing import SERVING, Doing

log = logging.getLogger("launchbound.engine")

GRACE_SECONDS = 1.0
"""How long after its deadline a job's outcome may still arrive before the front fails it."""


class SilentRequests:
    """Looks at each request that is still there after its deadline; `cancel` has the engine stop one.

    While there is an engine process it knows what that does.
    """

    def __init__(self, hang_seconds: float, cancel: Callable[[PendingRequest], None]) -> None:
        self._hang_seconds = hang_seconds
        self._cancel = cancel
        self._stuck: asyncio.Future[str] | None = None
        self._announced = ""
        self._engine_watch: ProcessWatch | None = None

    @property
    def doing(self) -> Doing | None:
        """What the engine last announced to do; None where there is no engine process."""
        return self._engine_watch.doing if self._engine_watch is not None else None

    def attach(self, engine_watch: ProcessWatch) -> asyncio.Future[str]:
        """A new engine process was started; returns what becomes the reason where it is to be ended."""
        self._engine_watch, self._announced = engine_watch, ""
        self._stuck = asyncio.get_running_loop().create_future()
        return self._stuck

    def detach(self) -> None:
        """The engine process has ended."""
        self._engine_watch = self._stuck = None

    def heard(self, doing: Doing) -> None:
        """The engine announced what it does; what is not served with is a line of the log, once in a row."""
        if self._engine_watch is not None:
            self._engine_watch.heard(doing)
            if doing.what not in (SERVING, self._announced):
                self._announced = doing.what
                log.info("the engine is %s (given up after %.0f s)", doing.what, doing.limit_seconds)

    def expired(self, pending: PendingRequest) -> None:
        """The engine did not end the job at its deadline; it stays unfinished until its outcome arrives."""
        pending.fail(DeadlinePassed("the deadline passed, and the engine has not answered; is it compiling?"))
        self._cancel(pending)
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
