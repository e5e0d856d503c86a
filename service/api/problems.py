"""Every error, whoever raised it, leaves in the one shape, with its headers, and refusals are counted."""

from __future__ import annotations

import logging

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.api.answers import reply
from service.api.parts import parts_of
from service.api.request_id import HEADER, id_of
from service.errors import BadRequest, LaunchboundError, Unauthorised, error_body

log = logging.getLogger("launchbound.api")

TYPES = {404: "not_found", 405: "method_not_allowed"}


def install(app: FastAPI) -> None:
    """Make `app` answer errors through here."""
    app.add_exception_handler(LaunchboundError, _known)
    app.add_exception_handler(RequestValidationError, _parameters)
    app.add_exception_handler(HTTPException, _of_the_framework)
    app.add_exception_handler(Exception, _unknown)


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, LaunchboundError)
    if error.rejection is not None:
        parts = parts_of(request)
        mode = request.path_params.get("mode")
        valid = mode in parts.settings.modes and not isinstance(error, Unauthorised)
        parts.metrics.rejected(error.rejection, mode if valid else None)
    elif error.status in (500, 504):
        log.warning("request %s: %s: %s", id_of(request.scope), error.type, error.message)
    return reply(error_body(error.type, error.message, error.param), error.headers(), error.status)


async def _parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return await _known(request, BadRequest(f"{name}: {first['msg']}", param=name))


async def _of_the_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {
        404: f"there is no {request.url.path[:200]} here; /docs lists what there is",
        405: f"{request.method} is not possible here; see the Allow header and /docs",
    }
    body = error_body(
        TYPES.get(error.status_code, "http_error"), messages.get(error.status_code, str(error.detail))
    )
    return reply(body, dict(error.headers or {}), error.status_code)


async def _unknown(request: Request, error: Exception) -> Response:
    """A fault of ours. The framework logs the traceback; the answer bypasses our middleware, hence the id."""
    log.error("request %s failed: %s: %s", id_of(request.scope), type(error).__name__, error)
    message = f"the service failed; its log has the reason under the request id {id_of(request.scope)}"
    return reply(error_body("internal", message), {HEADER: id_of(request.scope)}, 500)
