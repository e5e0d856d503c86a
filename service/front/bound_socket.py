"""The socket that the service listens on, bound before anything else is started."""

from __future__ import annotations

import socket

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
