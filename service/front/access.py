"""What every request passes before its route: its id, who may call, and the API key of `/v1`."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import getrandbits
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from fastapi.security import HTTPBearer
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.front.errors import CrossSite, HostNotAllowed, LaunchboundError, NotJson, Unauthorised
from service.front.settings import Settings

REQUEST_ID_HEADER = "X-Request-ID"
_REQUEST_ID = REQUEST_ID_HEADER.lower().encode()
WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")

Refuse = Callable[[Request, LaunchboundError], Response]
"""Makes the answer of an error."""

Broken = Callable[[Request, Exception], Response]
"""Makes the answer of a bug."""

_bearer = HTTPBearer(auto_error=False, description="`LAUNCHBOUND_API_KEY`, where one is set.")


DirectRoute = tuple[re.Pattern[str], Callable[..., Awaitable[Response]]]
"""A POST route of `/v1`: its endpoint gets the request, and the named groups of its path as keywords."""


class EntryMiddleware:
    """Sets `request.state.request_id`, returns it in a header, and refuses callers by `Origins`.

    A malformed or overlong `X-Request-ID` is replaced. HEAD is answered as GET is, without the body.

    The `direct` routes, which generate, are entered without the framework's middleware, router, dependencies
    and exit stacks, which take a third of what a request costs beside its model call. The framework describes
    them in the OpenAPI document, and answers other methods.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        direct: Sequence[DirectRoute],
        refuse: Refuse,
        broken: Broken,
    ) -> None:
        self._app = app
        self._settings = settings
        self._origins = Origins(settings.host, settings.allowed_hosts)
        self._direct = direct
        self._refuse = refuse
        self._broken = broken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(_REQUEST_ID, b"").decode("latin-1")
        request_id = given if WELL_FORMED.fullmatch(given) else f"{getrandbits(128):032x}"
        scope.setdefault("state", {})["request_id"] = request_id
        header = (_REQUEST_ID, request_id.encode("latin-1"))
        if head := scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message.get("headers", ()), header]
            elif head:
                message["body"] = b""
            await send(message)

        try:
            if scope["path"] not in OPEN:
                self._origins.check(scope["method"], scope["path"], scope["headers"])
            await self._enter(scope, receive, send_with_id)
        except LaunchboundError as error:
            # The answer has not begun: a stream sends later errors as events.
            await self._refuse(Request(scope), error)(scope, receive, send_with_id)
        except Exception as error:
            if not begun:
                await self._broken(Request(scope), error)(scope, receive, send_with_id)
            raise  # the server logs it, and closes the connection

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        for path, endpoint in self._direct if scope["method"] == "POST" else ():
            if match := path.fullmatch(scope["path"]):
                scope["path_params"] = match.groupdict()
                check_key(self._settings, scope)
                response = await endpoint(request=Request(scope, receive), **scope["path_params"])
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def require_key(settings: Settings) -> Callable[..., Awaitable[None]]:
    """A dependency that raises Unauthorised unless the request carries the API key, where one is set."""

    async def check(request: Request, _: Annotated[object, Depends(_bearer)]) -> None:
        check_key(settings, request.scope)

    return check


def check_key(settings: Settings, scope: Scope) -> None:
    if has_key(settings, scope):
        return
    if _bearer_of(scope) is None:
        raise Unauthorised("this service needs an API key: send 'Authorization: Bearer <key>'")
    raise Unauthorised("the API key is wrong")


def has_key(settings: Settings, scope: Scope) -> bool:
    """Whether no key is set, or the request carries it; compared in constant time."""
    key = settings.api_key
    if key is None:
        return True
    given = _bearer_of(scope)
    return given is not None and hmac.compare_digest(given.encode(), key.get_secret_value().encode())


def _bearer_of(scope: Scope) -> str | None:
    sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, given = str(sent, "latin-1").partition(" ")
    return given.strip() or None if scheme.lower() == "bearer" else None


OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
EVERYWHERE = ("0.0.0.0", "::", "")
ANY = "*"
ACTING = "/v1/"
"""The prefix of what does or tells something; pages and probes are outside."""

LINKED = "/v1/traces/"
"""Where a link on another page, such as a board, may lead: to a tab that the other page cannot read."""

OPEN = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
"""For scrapers and orchestrators, which call by any name or address."""


class Origins:
    """The names by which this service may be called: `bound`, those of this machine, and `names`, or '*'.

    A service that is bound everywhere may also be called by any IP address: a page whose name resolves to
    this machine (DNS rebinding) still sends its name.
    """

    def __init__(self, bound: str, names: Iterable[str]) -> None:
        self.names = frozenset(_as_host(name) for name in (*OWN_NAMES, bound, *names))
        self._any = ANY.encode() in self.names
        self._addresses = bound in EVERYWHERE

    def check(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise HostNotAllowed, CrossSite or NotJson where the request may not pass."""
        sent = list(headers)
        given = dict(sent)
        if [name for name, _ in sent].count(b"host") > 1:
            # A proxy in front may have believed the other one.
            raise HostNotAllowed("a request says once which host it is for: send one Host header")
        host = given.get(b"host", b"").lower()
        if not self._allows(host):
            raise HostNotAllowed(
                f"this service does not answer to the host '{host.decode('latin-1')[:100]}': add it to"
                " LAUNCHBOUND_ALLOWED_HOSTS, or call one of "
                + ", ".join(sorted(name.decode() for name in self.names))
            )
        if not path.startswith(ACTING):
            return
        if _is_foreign(given, host) and not _follows_a_link(method, path, given):
            raise CrossSite("a web page of another origin may not call this service: call it from a program")
        if method == "POST" and not _is_json(given):
            raise NotJson("send the body as JSON, with the header 'Content-Type: application/json'")

    def _allows(self, host: bytes) -> bool:
        name = _name_of(host)
        if self._any or name in self.names:
            return True
        return self._addresses and _address(name.decode("latin-1")) is not None


def _name_of(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return name if colon and not port.endswith(b"]") else host


def _as_host(name: str) -> bytes:
    """A name or address of a setting as the `Host` of a request has it."""
    if name.count(":") > 1 and not name.startswith("["):
        return f"[{name}]".lower().encode()
    return _name_of(name.lower().encode())


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


def _is_foreign(headers: dict[bytes, bytes], host: bytes) -> bool:
    """Whether the page is of another origin: by `Sec-Fetch-Site`, or by `Origin` for older browsers."""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != host
    except ValueError:
        return True


def _follows_a_link(method: str, path: str, headers: dict[bytes, bytes]) -> bool:
    """Whether a person opens a linked address as a page, not within another one."""
    as_page = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    return as_page and method == "GET" and path.startswith(LINKED)


def _is_json(headers: dict[bytes, bytes]) -> bool:
    """Whether the body is said to be JSON, or there is none."""
    kind = headers.get(b"content-type")
    if kind is None:
        return headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
    return kind.partition(b";")[0].strip().lower() == b"application/json"


def exposure(settings: Settings) -> str | None:
    """The warning at the start where other machines may reach the service and no key is set."""
    host, address = settings.host, _address(settings.host)
    is_loopback = host == "localhost" or (address is not None and address.is_loopback)
    if settings.api_key is not None or is_loopback:
        return None
    return (
        f"bound to {host} without a key: whoever reaches port {settings.port} can use this service; set"
        " LAUNCHBOUND_API_KEY, or see that only trusted machines reach it"
    )
