"""HTTP answers leave in one write: the server makes two, and each wakes the client and goes through TCP."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = b"HTTP/1.1 "


class JoinedWritesProtocol(HttpToolsProtocol):
    """Uvicorn's protocol on a transport that joins an answer's head with the first bytes of its body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wrap the transport."""
        super().connection_made(cast(asyncio.Transport, JoinedWrites(transport, self.loop)))


class JoinedWrites:
    """Holds a head back until the next write, or the end of this turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write `data`, behind the head that is held back; nothing where the connection was cut off."""
        if self._transport.is_closing():
            return
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close once everything has been written."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the transport has
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._head:
            data, self._head = self._head, b""
            if not self._transport.is_closing():
                self._transport.write(data)
