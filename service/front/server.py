"""How the service listens and is run: one process, our protocol, and a drain before it stops."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from functools import partial
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.front.limits import BoundedProtocol, Slots, affordable
from service.front.routes.state import AppState
from service.front.settings import Settings

BACKLOG = 2048
"""Connections that wait to be accepted; uvicorn's own default."""

SEND_BYTES = 131_072
"""What the kernel holds of an answer that is not read. By itself it takes megabytes of each connection, and
the server, which has then written all, does not know that nobody reads.
"""


def bound_socket(host: str, port: int, unread_seconds: float = 0) -> socket.socket:
    """A listening socket, port 0 for a free one; raises OSError where the port is taken.

    Of its connections the kernel drops those that take nothing of what it holds for `unread_seconds`, also
    where the server has closed them; 0: when it likes.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit both.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(unread_seconds * 1000))
    try:
        listener.bind(address)
        # At once: two sockets may be bound to a port that is reused as long as neither listens.
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Where it is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


HEADERS = [("X-Content-Type-Options", "nosniff"), ("Cross-Origin-Resource-Policy", "same-origin")]
"""Of every answer: a browser takes none for something else, and shows none to a page of another origin."""

LAST_ANSWERS_SECONDS = 1
"""How long answers may still be on their way to clients once the service has drained."""


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """The server's configuration for `app`, which `create_app` has made of `settings`.

    Raises ValueError where this process may not open enough files for a connection.
    """
    state: AppState = app.state.launchbound
    protocol = partial(
        BoundedProtocol,
        settings=settings,
        slots=Slots(affordable(settings.max_connections), state.metrics.connections),
        refused=lambda reason: state.metrics.rejected(reason, None),
    )
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=cast(type[HttpToolsProtocol], protocol),
        ws="none",
        lifespan="on",
        workers=1,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        headers=HEADERS,
        server_header=False,
        timeout_graceful_shutdown=LAST_ANSWERS_SECONDS,
    )


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
        elif self._state.client.draining:
            self._loop.call_soon_threadsafe(self._end_at_once)
        else:
            self._state.client.draining = True
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
