"""Which jobs the service takes: none while it drains or has no engine, and no more than its queue holds."""

from __future__ import annotations

from service.front.errors import Draining, LaunchboundError, ModeNotReady, QueueFull
from service.protocol.status import ModeStatus


class Admission:
    """`modes` are the states of the engine's modes, `open` those of them that take a job now.

    `open` is kept current by what changes it, so that a request costs one look at it; why it was not open is
    found out for those that are refused.
    """

    def __init__(self, modes: list[str], max_queue: int) -> None:
        self.configured = modes
        self.max_queue = max_queue
        self.modes: dict[str, ModeStatus] = {}
        self.open: frozenset[str] = frozenset()
        self._connected = False
        self._draining = False

    @property
    def draining(self) -> bool:
        """Whether the service shuts down: it takes nothing from then on."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self._settle()

    def connected(self) -> None:
        """An engine has told of itself."""
        self._connected = True
        self._settle()

    def changed(self, status: ModeStatus) -> None:
        """A mode's state has changed."""
        self.modes[status.mode] = status
        self._settle()

    def disconnected(self) -> None:
        """There is no engine; the next one reports its modes anew."""
        self._connected = False
        self.modes.clear()
        self._settle()

    def state(self, mode: str) -> str:
        """How far a configured mode is."""
        return self.modes[mode].state if mode in self.modes else "cold"

    def ready(self) -> list[str]:
        """Names of the modes that serve now, in the ladder's order."""
        return [name for name in self.configured if self.state(name) == "ready"]

    def warming(self) -> list[str]:
        """Names of the modes that are neither ready nor failed."""
        return [name for name in self.configured if self.state(name) in ("cold", "warming")]

    def refusal(
        self,
        mode: str | None,
        unfinished: int,
        down_reason: str,
        retry_after_seconds: int,
        follows: bool = False,
    ) -> LaunchboundError | None:
        """Why a job of `mode` (None: of any) is refused beside `unfinished` others; None where it is taken.

        `down_reason` and `retry_after_seconds` are for the case that there is no engine. `follows`: it
        belongs to a request that was accepted, which a drain lets end.
        """
        if self._draining and not follows:
            return Draining("the service is shutting down and takes no new requests; try another instance")
        if not self._connected:
            return ModeNotReady(
                f"{down_reason}; retry in {retry_after_seconds} s",
                type="engine_not_ready",
                retry_after_seconds=retry_after_seconds,
            )
        if mode is not None and self.state(mode) != "ready":
            return self._not_ready(mode)
        if unfinished >= self.max_queue:
            message = f"{self.max_queue} requests are accepted and unfinished; send fewer at a time"
            return QueueFull(message, retry_after_seconds=1)
        return None

    def _settle(self) -> None:
        serves = self._connected and not self._draining
        self.open = frozenset(self.ready()) if serves else frozenset()

    def _not_ready(self, mode: str) -> ModeNotReady:
        state = self.state(mode)
        ready = f"ready: {', '.join(self.ready()) or 'none yet'}"
        if state == "failed":
            reason = self.modes[mode].detail or "no reason given"
            message = f"mode '{mode}' failed to become ready ({reason}); {ready}"
            return ModeNotReady(message, type="mode_failed", param="mode", retry_after_seconds=60)
        return ModeNotReady(f"mode '{mode}' is {state}; {ready}", param="mode")
