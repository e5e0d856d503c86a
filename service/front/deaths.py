"""How often engines have ended of late: how long the next start waits, and when to call for help."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

WINDOW_SECONDS = 900.0
"""Deaths this long ago no longer count, except those before anything was warm."""

STAYED_SECONDS = 180.0
"""An engine that has been warm for so long serves, however those before it ended."""

SLOWEST_RETRY_SECONDS = 30.0
DEATHS_UNTIL_UNHEALTHY = 5


class Deaths:
    """The ends of one front's engines.

    Two loops are told from single failures: engines that never become warm, however long each takes to fail,
    and engines that do, and end several times within the window.
    """

    def __init__(self, first_retry_seconds: float, now: Callable[[], float] = monotonic) -> None:
        self.first_retry_seconds = first_retry_seconds
        self.now = now
        self._instants: deque[float] = deque(maxlen=1000)
        self._never_warm = 0

    def add(self, warm: bool) -> float:
        """An engine has ended, which had been `warm` or not; returns the seconds until the next one's start.

        None after one that was warm and the first of late: nothing speaks for another failure, and its
        clients wait. Else twice as long after each, up to a limit.
        """
        self._instants.append(self.now())
        self._never_warm = 0 if warm else self._never_warm + 1
        failures = max(self._recent() - warm, self._never_warm)
        if failures == 0:
            return 0.0
        doubled = self.first_retry_seconds * 2.0 ** min(failures - 1, 16)
        return min(SLOWEST_RETRY_SECONDS, doubled)

    def unhealthy(self, warm_since: float | None) -> str | None:
        """In words that engines keep ending; None where they do not, or where the present one has stayed.

        `warm_since`: when that became warm, by the same clock as `now`; None where it is not.
        """
        if warm_since is not None and self.now() - warm_since >= STAYED_SECONDS:
            return None
        recent = self._recent()
        if recent >= DEATHS_UNTIL_UNHEALTHY:
            return f"the engine ended {recent} times within {WINDOW_SECONDS / 60:.0f} minutes"
        if warm_since is None and self._never_warm >= DEATHS_UNTIL_UNHEALTHY:
            return f"the engine ended {self._never_warm} times in a row before it was warm"
        return None

    def _recent(self) -> int:
        begin = self.now() - WINDOW_SECONDS
        while self._instants and self._instants[0] < begin:
            self._instants.popleft()
        return len(self._instants)
