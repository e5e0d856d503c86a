"""How the HTTP server is set up: one process, our protocol, and what a connection may take."""

from __future__ import annotations

from functools import partial
from typing import cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.front.api.state import AppState
from service.front.bounded_protocol import BoundedProtocol
from service.front.connection_limits import ConnectionLimits, Places, affordable
from service.front.settings import Settings

HEADERS = [("X-Content-Type-Options", "nosniff"), ("Cross-Origin-Resource-Policy", "same-origin")]
"""Of every answer: a browser takes none for something else, and shows none to a page of another origin."""

LAST_ANSWERS_SECONDS = 1
"""How long answers may still be on their way to clients once the service has drained."""


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """The server's configuration for `app`, which `create_app` has made of `settings`.

    Raises ValueError where this process may not open enough files for a connection.
    """
    state: AppState = app.state.launchbound
    limits = ConnectionLimits(
        head_seconds=settings.head_timeout_seconds,
        body_seconds=settings.body_timeout_seconds,
        unread_seconds=settings.unread_timeout_seconds,
    )
    protocol = partial(
        BoundedProtocol,
        limits=limits,
        places=Places(affordable(settings.max_connections), state.metrics.connections),
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
