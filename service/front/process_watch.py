"""Tells a child that is busy from one that hangs: by what it announced, and by what the kernel sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from service.front.process_activity import TICKS_PER_SECOND, Activity, activity
from service.protocol.doing import Doing

LOOK_SECONDS = 1.0
"""How often it is looked at."""

STARTING = Doing(what="starting", limit_seconds=60.0)
"""What an engine does until its first message, which it sends before it imports torch."""

QUIET_SECONDS = 2.5
"""One that was heard of this lately is not looked at in /proc: one that serves sends a message a second."""

STILL_SECONDS = 8.0
"""Without a message, CPU time, or a core or disk that it waits for: nothing that an engine does is so."""

PAGING_FAULTS = 64.0
"""With so many major faults a second a process waits for its pages, and its CPU time is spent on those."""


class ProcessWatch:
    """One process. It hangs where it exceeds what it announced, in time or in CPU time, or stands still.

    A process that is stopped or waits for a lock stands still; one in an endless loop exceeds a limit. CPU
    time tells that loop from a slow machine: a step that waits for a core, or for pages from a disk, takes
    long and uses no more of it than ever. `watching` False: it is stopped on purpose.
    """

    def __init__(
        self, pid: int, look: Callable[[int], Activity | None] = activity, doing: Doing = STARTING
    ) -> None:
        self._pid = pid
        self._look = look
        self._silent_seconds = 0.0
        self._still_seconds = 0.0
        self._busy_seconds = 0.0
        self._seen: Activity | None = None
        self.doing = doing
        self.watching = True

    def heard(self, doing: Doing | None = None) -> None:
        """A message arrived; `doing` where it is one."""
        self._silent_seconds = self._still_seconds = self._busy_seconds = 0.0
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
        before, self._seen = self._seen, self._look(self._pid)
        if before is None or self._seen is None:
            self._still_seconds = 0.0
            return None
        return self._judge(before, self._seen, passed)

    def _judge(self, before: Activity, now: Activity, passed: float) -> str | None:
        """By two looks at it, `passed` seconds apart."""
        doing = self.doing
        still = _stands_still(before, now, doing)
        self._still_seconds = self._still_seconds + passed if still else 0.0
        if self._still_seconds > STILL_SECONDS:
            return f"has stood still for {self._silent_seconds:.0f} s while {doing.what}"
        self._busy_seconds += _computed_seconds(before, now, passed)
        most = doing.busy_limit_seconds
        if most is not None and self._busy_seconds >= most:
            used = f"{self._busy_seconds:.0f} s of CPU time within one step"
            return f"has used {used} while {doing.what}, over the {most:.0f} s that any may take,"
        return None


def _stands_still(before: Activity, now: Activity, doing: Doing) -> bool:
    if doing.may_wait and not now.stopped:
        return False
    return not now.at_work and now.cpu_ticks == before.cpu_ticks


def _computed_seconds(before: Activity, now: Activity, passed: float) -> float:
    """CPU time of its busiest thread, `passed` seconds at most; none while it pages."""
    if now.major_faults - before.major_faults > PAGING_FAULTS * passed:
        return 0.0
    used = (ticks - before.thread_ticks.get(thread, 0) for thread, ticks in now.thread_ticks.items())
    return min(passed, max(used, default=0) / TICKS_PER_SECOND)


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
