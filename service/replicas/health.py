"""When a replica is to be replaced: by what `/health/ready` says, and for how long it has said so."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from service.front.routes.health import missed, obstacle
from service.front.routes.state import AppState

LEAST_PATIENCE_SECONDS = 60.0


class Unhealthy(RuntimeError):
    """The replica is to be replaced; the message says why."""


class Health:
    """The health of one replica, which took `start_seconds` to become ready.

    A front starts a new engine by itself, within about the time of the first start: only what lasts twice as
    long, or a minute, is a fault of the replica. Engines that keep ending are one at once.
    """

    def __init__(
        self, state: AppState, start_seconds: float = 0.0, now: Callable[[], float] = monotonic
    ) -> None:
        self._state = state
        self._now = now
        self.patience_seconds = max(LEAST_PATIENCE_SECONDS, 2 * start_seconds)
        self._obstructed_since: float | None = None

    @property
    def ready(self) -> bool:
        """Whether every mode that did not fail, and every required one, takes requests now."""
        return obstacle(self._state, detailed=True) is None

    @property
    def lost(self) -> str | None:
        """Why waiting does not help: engines keep ending, or modes have failed. None where it may."""
        if (reason := self._state.supervisor.unhealthy_reason) is not None:
            return reason
        failed = (f"mode {status.mode} failed: {status.detail}" for status in missed(self._state))
        return "; ".join(failed) or None

    def check(self) -> None:
        """Raise Unhealthy where this replica is to be replaced."""
        found = obstacle(self._state, detailed=True)
        if found is None or self._state.client.draining:
            self._obstructed_since = None
            return
        now = self._now()
        self._obstructed_since = now if self._obstructed_since is None else self._obstructed_since
        if self._state.supervisor.unhealthy_reason is not None:
            raise Unhealthy(found.message)
        if (lasted := now - self._obstructed_since) >= self.patience_seconds:
            raise Unhealthy(f"not ready for {lasted:.0f} s: {found.message}")
