"""The address of a replica of its own, beside Serve's proxy: a front's usual HTTP server on a free port."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from service.front.access import EVERYWHERE
from service.front.server import bound_socket, server_config
from service.front.settings import Settings


def bound_at(host: str, node: str) -> tuple[str, str]:
    """Where a replica listens, and by which name it is reached, of a service that is bound to `host`.

    `node` is the address of the replica's node: a host that is one machine's address is not another's.
    """
    if host in EVERYWHERE:
        return host, node
    if host == "localhost" or _is_loopback(host):
        return host, host
    return node, node


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    """Signals are for the process that the replica runs in, which is Ray's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class OwnListener:
    """Serves `app`, with its lifespan, until `stop`. `address` is host:port, and known before it serves."""

    def __init__(self, host: str, reached_at: str, unread_seconds: float) -> None:
        self._socket: socket.socket = bound_socket(host, 0, unread_seconds)
        port = self._socket.getsockname()[1]
        self.address = f"[{reached_at}]:{port}" if ":" in reached_at else f"{reached_at}:{port}"
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, app: FastAPI, settings: Settings) -> None:
        """Serve; returns once the app's lifespan has begun. Raises RuntimeError where it does not."""
        self._server = _Server(server_config(app, settings))
        self._serving = asyncio.create_task(self._server.serve([self._socket]), name="own-listener")
        while not self._server.started:
            if self._serving.done():
                raise RuntimeError("the front of the replica did not start; its log says why")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Take no more connections, and end the lifespan, and with it the engine."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
        self._socket.close()
