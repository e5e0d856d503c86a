"""The bearer token that every `/v1` call needs where an API key is set."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.api.parts import parts_of
from service.errors import Unauthorised

_bearer = HTTPBearer(auto_error=False, description="`LAUNCHBOUND_API_KEY`, where one is set.")


async def require_key(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Raise Unauthorised unless the key matches, compared in constant time."""
    key = parts_of(request).settings.api_key
    if key is None:
        return
    if given is None:
        raise Unauthorised("this service needs an API key: send 'Authorization: Bearer <key>'")
    if not hmac.compare_digest(given.credentials.encode(), key.get_secret_value().encode()):
        raise Unauthorised("the API key is wrong")
