"""The pause of the engine, held by leases: an engine whose front stops renewing serves again by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from service.front.errors import LaunchboundError, StudyInterrupted
from service.protocol.messages import Pause, Paused, Resume, ToEngine

LEASE_SECONDS = 15.0
"""The engine serves again this long after the newest Pause that it received."""


class PauseLease:
    """At most one pause at a time. While there is one, `lost` is the future of its untimely end."""

    def __init__(self, post: Callable[[ToEngine], None]) -> None:
        self._post = post
        self._id = 0
        self._renewed = 0.0
        self._begun: asyncio.Future[None] | None = None
        self.lost: asyncio.Future[LaunchboundError] | None = None

    @property
    def held(self) -> bool:
        """Whether the engine is paused now."""
        return self._begun is not None and self._begun.done()

    @property
    def overdue(self) -> bool:
        """Whether the lease may have run out: the engine could have served since."""
        return monotonic() - self._renewed > LEASE_SECONDS

    async def begin(self) -> None:
        """Pause the engine once it has done what it was sent before; returns when it is paused.

        Raises the LaunchboundError that ended the wait, such as EngineLost.
        """
        loop = asyncio.get_running_loop()
        self._id += 1
        self._begun = loop.create_future()
        self.lost = loop.create_future()
        self.renew()
        ends: set[asyncio.Future[Any]] = {self._begun, self.lost}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.lost.done():
            raise self.lost.result()

    def renew(self) -> None:
        """Request the pause, or prolong the one that has begun."""
        self._renewed = monotonic()
        self._post(Pause(id=self._id, lease_seconds=LEASE_SECONDS))

    def end(self) -> None:
        """Have the engine serve again, or withdraw a pause that has not begun."""
        if self._begun is not None:
            self._begun = None
            self.lost = None
            self._post(Resume())

    def answered(self, answer: Paused) -> None:
        """The engine has paused, or (`holds` False) has served since it last did."""
        if self._begun is None or answer.id != self._id:
            return
        if not answer.holds:
            self.break_off(
                StudyInterrupted("the engine served meanwhile, so nothing was measured; try again")
            )
        elif not self._begun.done():
            # The lease counts from here, however long the engine took to begin: an engine whose lease
            # ran out before this renewal arrives answers it with `holds` False.
            self.renew()
            self._begun.set_result(None)

    def break_off(self, error: LaunchboundError) -> None:
        """End the pause before its time: `lost` becomes `error`."""
        if self.lost is not None and not self.lost.done():
            self.lost.set_result(error)
