"""The bearer token that every `/v1` call needs where an API key is set."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.front.api.state import state_of
from service.front.errors import Unauthorised
from service.front.settings import Settings

_bearer = HTTPBearer(auto_error=False, description="`LAUNCHBOUND_API_KEY`, where one is set.")


async def require_key(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Raise Unauthorised unless the key matches, compared in constant time."""
    if key_fits(state_of(request).settings, given.credentials if given else None):
        return
    if given is None:
        raise Unauthorised("this service needs an API key: send 'Authorization: Bearer <key>'")
    raise Unauthorised("the API key is wrong")


def key_fits(settings: Settings, given: str | None) -> bool:
    """Whether no key is set, or `given` is it; compared in constant time."""
    key = settings.api_key
    if key is None:
        return True
    return given is not None and hmac.compare_digest(given.encode(), key.get_secret_value().encode())
