"""Who is told what the engine says of itself: the metrics, the log, advice."""

from __future__ import annotations

from typing import Protocol

from service.protocol.status import EngineStatus, ModeStatus


class Listener(Protocol):
    """Is called with every status that the engine sends."""

    def engine(self, status: EngineStatus) -> None:
        """The engine connected, or its status changed."""

    def mode(self, status: ModeStatus) -> None:
        """A mode changed."""

    def engine_lost(self) -> None:
        """The engine process ended; the next one starts from zero."""


class Listeners:
    """Several of them as one, called in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def engine(self, status: EngineStatus) -> None:
        """As `Listener`."""
        for listener in self._listeners:
            listener.engine(status)

    def mode(self, status: ModeStatus) -> None:
        """As `Listener`."""
        for listener in self._listeners:
            listener.mode(status)

    def engine_lost(self) -> None:
        """As `Listener`."""
        for listener in self._listeners:
            listener.engine_lost()
