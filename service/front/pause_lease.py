"""The engine's rest, as the front asks for it: by leases, so that a front in trouble cannot hold it long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from service.front.errors import LaunchboundError, StudyInterrupted
from service.protocol.messages import Pause, Paused, Resume, ToEngine

LEASE_SECONDS = 15.0
"""The engine serves again this long after the front's newest word."""


class PauseLease:
    """At most one rest at a time. `lost` is the future of its untimely end, while there is a rest."""

    def __init__(self, post: Callable[[ToEngine], None]) -> None:
        self._post = post
        self._id, self._renewed = 0, 0.0
        self._begun: asyncio.Future[None] | None = None
        self.lost: asyncio.Future[LaunchboundError] | None = None

    @property
    def held(self) -> bool:
        """Whether the engine rests now."""
        return self._begun is not None and self._begun.done()

    @property
    def overdue(self) -> bool:
        """Whether the engine may have lost patience: it was told so long ago to rest."""
        return monotonic() - self._renewed > LEASE_SECONDS

    async def begin(self) -> None:
        """Have the engine rest once it has done what it was sent before; returns when it does.

        Raises the LaunchboundError that came in between: the engine ended.
        """
        loop = asyncio.get_running_loop()
        self._id += 1
        self._begun, self.lost = loop.create_future(), loop.create_future()
        self.renew()
        ends: set[asyncio.Future[Any]] = {self._begun, self.lost}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.lost.done():
            raise self.lost.result()

    def renew(self) -> None:
        """Ask for, or keep, the rest that was begun."""
        self._renewed = monotonic()
        self._post(Pause(id=self._id, lease_seconds=LEASE_SECONDS))

    def end(self) -> None:
        """Have the engine serve again, or forget that it was to rest."""
        if self._begun is not None:
            self._begun = self.lost = None
            self._post(Resume())

    def answered(self, answer: Paused) -> None:
        """The engine began to rest, or has served since it last did."""
        if self._begun is None or answer.id != self._id:
            return
        if not answer.holds:
            self.break_off(
                StudyInterrupted("the engine served meanwhile, so nothing was measured; try again")
            )
        elif not self._begun.done():
            self._begun.set_result(None)

    def break_off(self, error: LaunchboundError) -> None:
        """Whoever has the engine rest is to stop what they do, because of `error`."""
        if self.lost is not None and not self.lost.done():
            self.lost.set_result(error)
