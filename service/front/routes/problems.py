"""Exception handlers: every error is answered in one shape, with its headers, and refusals are counted."""

from __future__ import annotations

import logging

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.front.errors import BadRequest, LaunchboundError, Unauthorised, error_body
from service.front.routes.answers import reply
from service.front.routes.openai import INVALID, PATHS, completion_error
from service.front.routes.state import state_of

log = logging.getLogger("launchbound.api")


def install(app: FastAPI) -> None:
    app.add_exception_handler(LaunchboundError, _launchbound_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameter)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Exception, _broken)


async def _launchbound_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LaunchboundError)
    return refuse(request, error)


def refuse(request: Request, error: LaunchboundError) -> Response:
    """The answer of `error`; a refusal is counted, and a failure of ours is logged."""
    as_openai = error.status == BadRequest.status and request.scope["path"] in PATHS
    status = INVALID if as_openai else error.status
    if error.rejection is not None:
        state = state_of(request)
        # Of `auto` it is the mode that was picked; before that it has named none, as its label must be one.
        mode = getattr(request.state, "mode", request.path_params.get("mode"))
        # Only a POST is a generation request of its mode; a refused GET is not counted under it.
        generates = request.method == "POST" and mode in state.settings.modes
        valid = generates and not isinstance(error, Unauthorised)
        state.rejected(request.state.request_id, mode if valid else None, error, status)
    elif error.status in (500, 504):
        log.warning("request %s: %s: %s", request.state.request_id, error.type, error.message)
    body = _body(request, error.type, error.message, error.param, status)
    return reply(body, error.headers(), status)


def _body(
    request: Request, type_: str, message: str, param: str | None = None, status: int | None = None
) -> object:
    if request.scope["path"] in PATHS:
        return completion_error(type_, message, param, status)
    return error_body(type_, message, param)


async def _invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return refuse(request, BadRequest(f"{name}: {first['msg']}", param=name))


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {
        404: ("not_found", f"there is no {request.scope['path'][:200]} here; /docs lists what there is"),
        405: ("method_not_allowed", f"{request.method} is not possible here; see the Allow header and /docs"),
    }
    type_, message = known.get(error.status_code, ("http_error", str(error.detail)))
    return reply(_body(request, type_, message), dict(error.headers or {}), error.status_code)


async def _broken(request: Request, error: Exception) -> Response:
    return broken(request, error)


def broken(request: Request, error: Exception) -> Response:
    """A bug, whose traceback the server logs."""
    log.error("request %s failed: %s: %s", request.state.request_id, type(error).__name__, error)
    state_of(request).request_log.broken(request.state.request_id)
    message = f"the service failed; its log has the reason under the request id {request.state.request_id}"
    # The server closes the connection where an endpoint raised, so a client must not send on it again.
    return reply(_body(request, "internal", message), {"connection": "close"}, 500)
