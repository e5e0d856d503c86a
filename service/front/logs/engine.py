"""What the engine says of itself, as lines: the banner, and each mode as it becomes ready or fails."""

from __future__ import annotations

import logging

from service.front.logs.banner import Place, banner
from service.front.logs.event import Event, one_line
from service.protocol.status import Cache, EngineStatus, ModeStatus

log = logging.getLogger("launchbound.engine")
start = logging.getLogger("launchbound.start")
modes = logging.getLogger("launchbound.mode")

SETTLED = ("ready", "failed")


class ModeLine(Event, frozen=True, kw_only=True):
    """A mode that has become ready, or has failed for the reason in `detail`.

    `compile_seconds` is the sum over its `compilations`; `recompiles` counts those after it was ready.
    """

    mode: str
    state: str
    effective: str
    reason: str | None
    detail: str | None
    cache: Cache | None
    warmup_seconds: float | None
    compilations: int
    compile_seconds: float
    graph_breaks: int
    recompiles: int

    def __str__(self) -> str:
        words = [f"{self.mode:<15} {self.state}"]
        if self.effective != self.mode:
            words.append(f"as {self.effective} ({one_line(self.reason or 'no reason given')})")
        if self.warmup_seconds is not None:
            words.append(f"warmed up in {self.warmup_seconds:.1f} s")
        if self.compilations:
            count = f"{self.compilations} compilations in {self.compile_seconds:.1f} s"
            words.append(f"{count}, cache {self.cache or 'not known'}")
        if self.recompiles:
            words.append(f"recompiled {self.recompiles} times")
        if self.detail:
            words.append(one_line(self.detail))
        return "; ".join(words)


class EngineLog:
    """A listener of the engine client. `place` is what the banner says of this front."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._modes: dict[str, ModeStatus] = {}
        self._status: EngineStatus | None = None

    def engine(self, status: EngineStatus) -> None:
        """Its first status makes the banner; the first that is warm ends the warm-up."""
        before, self._status = self._status, status
        if before is None:
            start.info(banner(self._place, status, self._states(status)))
        if status.warm and not (before and before.warm):
            states = self._states(status)
            ready = [name for name, state in states.items() if state == "ready"]
            log.info("the engine is warm; modes that serve: %s", ", ".join(ready) or "none")

    def mode(self, status: ModeStatus) -> None:
        """One line where it is ready, has failed, or has compiled again."""
        before = self._modes.get(status.mode)
        self._modes[status.mode] = status
        recompiled = before is not None and before.recompiles < status.recompiles
        changed = before is None or before.state != status.state
        if status.state in SETTLED and (changed or recompiled):
            bad = status.state == "failed" or recompiled
            modes.log(logging.WARNING if bad else logging.INFO, _line_of(status))

    def engine_lost(self) -> None:
        """Why is the supervisor's line."""
        self._modes.clear()
        self._status = None

    def _states(self, status: EngineStatus) -> dict[str, str]:
        return {name: self._modes[name].state if name in self._modes else "cold" for name in status.modes}


def _line_of(status: ModeStatus) -> ModeLine:
    return ModeLine(
        mode=status.mode,
        state=status.state,
        effective=status.effective,
        reason=status.reason,
        detail=status.detail,
        cache=status.cache,
        warmup_seconds=status.warmup_seconds,
        compilations=len(status.compile_seconds),
        compile_seconds=sum(status.compile_seconds),
        graph_breaks=status.graph_breaks,
        recompiles=status.recompiles,
    )
