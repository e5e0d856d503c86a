"""Tells a child that is busy from one that hangs: by what it announced, and by what the kernel sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from service.front.process_activity import Activity, activity
from service.protocol.doing import Doing

LOOK_SECONDS = 1.0
"""How often it is looked at."""

STARTING = Doing(what="starting", limit_seconds=60.0)
"""What an engine does until its first message, which it sends before it imports torch."""

QUIET_SECONDS = 2.5
"""One that was heard of this lately is not looked at in /proc: one that serves sends a message a second."""

STILL_SECONDS = 8.0
"""Without a message, CPU time, or a core or disk that it waits for: nothing that an engine does is so."""


class ProcessWatch:
    """One process. It hangs where it exceeds what it announced, or stands still.

    A process that is stopped or waits for a lock stands still; one in an endless loop exceeds its limit.
    `watching` False: it is stopped on purpose.
    """

    def __init__(
        self, pid: int, look: Callable[[int], Activity | None] = activity, doing: Doing = STARTING
    ) -> None:
        self._pid = pid
        self._look = look
        self._silent_seconds = 0.0
        self._still_seconds = 0.0
        self._seen: Activity | None = None
        self.doing = doing
        self.watching = True

    def heard(self, doing: Doing | None = None) -> None:
        """A message arrived; `doing` where it is one."""
        self._silent_seconds = self._still_seconds = 0.0
        self._seen = None
        if doing is not None:
            self.doing = doing

    def hung(self, passed_seconds: float) -> str | None:
        """Why the engine counts as hung after `passed_seconds` more; None where it does not.

        Of a longer time than between two looks only that much counts: then this process itself was suspended.
        """
        if not self.watching:
            return None
        passed = min(passed_seconds, 2 * LOOK_SECONDS)
        self._silent_seconds += passed
        doing = self.doing
        if self._silent_seconds > doing.limit_seconds:
            limit = f"{doing.limit_seconds:.0f} s it may take"
            return f"has been {doing.what} for {self._silent_seconds:.0f} s, over the {limit},"
        if self._silent_seconds < QUIET_SECONDS:
            return None
        self._still_seconds = self._still_seconds + passed if self._stands_still(doing) else 0.0
        if self._still_seconds > STILL_SECONDS:
            return f"has stood still for {self._silent_seconds:.0f} s while {doing.what}"
        return None

    def _stands_still(self, doing: Doing) -> bool:
        before, self._seen = self._seen, self._look(self._pid)
        now = self._seen
        if now is None or before is None:
            return False
        if doing.may_wait and not now.stopped:
            return False
        return not now.at_work and now.cpu_ticks == before.cpu_ticks


async def look_after(process_watch: ProcessWatch, stuck: asyncio.Future[str]) -> None:
    """Look at a process until it hangs; then `stuck` is the reason."""
    before = monotonic()
    while not stuck.done():
        await asyncio.sleep(LOOK_SECONDS)
        now = monotonic()
        reason = process_watch.hung(now - before)
        before = now
        if reason is not None and not stuck.done():
            stuck.set_result(reason)
