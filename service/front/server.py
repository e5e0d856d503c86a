"""Uvicorn in one process that drains before it stops: while running requests end, it answers 503."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from types import FrameType

import uvicorn

from service.front.api.state import AppState
from service.front.bound_socket import url_of


class Server(uvicorn.Server):
    """The first SIGTERM, SIGHUP or Ctrl-C drains, then stops; the second ends everything at once."""

    def __init__(self, config: uvicorn.Config, state: AppState, listener: socket.socket) -> None:
        super().__init__(config)
        self._state = state
        self._listener = listener
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self.unannounced: OSError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and print the URL, from which a launcher learns the port it got for 0."""
        self._loop = asyncio.get_running_loop()
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which is what `nohup` asks for
            signal.signal(signal.SIGHUP, self.handle_exit)
        await super().startup(sockets)
        # What lives as long as the server need not be looked through at every full collection.
        gc.collect()
        gc.freeze()
        try:
            print(f"launchbound: serving on {url_of(self._listener)}", flush=True)
        except OSError as error:
            # Raised here it would be a failed start of the application, and told as such.
            self.unannounced, self.should_exit = error, True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal arrived: drain, then end with exit code 0."""
        if self._loop is None:
            self.should_exit = True
        elif self._state.client.admission.draining:
            self._loop.call_soon_threadsafe(self._end_at_once)
        else:
            self._state.client.admission.draining = True
            self._loop.call_soon_threadsafe(self._begin_drain)

    def _end_at_once(self) -> None:
        self._state.client.abandon()
        self._state.supervisor.kill()
        self._state.studies.process.kill()
        self.should_exit = self.force_exit = True

    def _begin_drain(self) -> None:
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._state.client.drain(self._state.settings.drain_seconds)
        self.should_exit = True
