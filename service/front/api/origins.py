"""Who may call: by a `Host` of this service, not for a web page of somebody else, and with JSON."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from service.front.errors import LaunchboundError
from service.front.refusals import CrossSite, HostNotAllowed, NotJson
from service.front.settings import Settings

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
EVERYWHERE = ("0.0.0.0", "::", "")
ANY = "*"
ACTING = "/v1/"
"""What is behind this prefix does or tells something; pages and probes are outside."""

LINKED = "/v1/traces/"
"""What a link on another page, such as a board, may lead to: in a tab of its own, where that page reads
nothing of it."""

OPEN = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
"""For scrapers and orchestrators, which call by whatever name or address they have."""


class Origins:
    """The names by which this service may be called: `bound`, those of this machine, and `names`.

    A service that is bound everywhere may also be called by any IP address: a page that has its own name
    resolve to this machine (DNS rebinding) still sends that name. '*' among `names` allows every name.
    """

    def __init__(self, bound: str, names: Iterable[str]) -> None:
        self.names = frozenset(_as_host(name) for name in (*OWN_NAMES, bound, *names))
        self._any = ANY.encode() in self.names
        self._addresses = bound in EVERYWHERE

    def refusal(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> LaunchboundError | None:
        """Why the request is refused; None where it may pass."""
        sent = list(headers)
        given = dict(sent)
        if sum(name == b"host" for name, _ in sent) > 1:
            # A proxy in front may have believed the other one.
            return HostNotAllowed("a request says once which host it is for: send one Host header")
        host = given.get(b"host", b"").lower()
        if not self._allows(host):
            return HostNotAllowed(
                f"this service does not answer to the host '{host.decode('latin-1')[:100]}': add it to"
                " LAUNCHBOUND_ALLOWED_HOSTS, or call one of "
                + ", ".join(sorted(name.decode() for name in self.names))
            )
        if not path.startswith(ACTING):
            return None
        if _is_foreign(given, host) and not _follows_a_link(method, path, given):
            return CrossSite("a web page of another origin may not call this service: call it from a program")
        if method == "POST" and not _is_json(given):
            return NotJson("send the body as JSON, with the header 'Content-Type: application/json'")
        return None

    def _allows(self, host: bytes) -> bool:
        name = name_of(host)
        if self._any or name in self.names:
            return True
        return self._addresses and _is_address(name)


def name_of(host: bytes) -> bytes:
    """A `Host` without its port, IPv6 addresses in their brackets."""
    name, colon, port = host.rpartition(b":")
    return name if colon and not port.endswith(b"]") else host


def _as_host(name: str) -> bytes:
    """A name or address of a setting as the `Host` of a request has it."""
    if name.count(":") > 1 and not name.startswith("["):
        return f"[{name}]".lower().encode()
    return name_of(name.lower().encode())


def _is_address(name: bytes) -> bool:
    try:
        ipaddress.ip_address(name.decode("latin-1").strip("[]"))
    except ValueError:
        return False
    return True


def _is_foreign(headers: dict[bytes, bytes], host: bytes) -> bool:
    """Whether a browser says so; one that is too old to, by the origin of the page."""
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
    """Whether a browser says that a person opens a linked address as a page, not within another one."""
    as_page = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    return as_page and method == "GET" and path.startswith(LINKED)


def _is_json(headers: dict[bytes, bytes]) -> bool:
    """Whether the body is said to be JSON, or there is none."""
    kind = headers.get(b"content-type")
    if kind is None:
        return headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
    return kind.partition(b";")[0].strip().lower() == b"application/json"


def exposure(settings: Settings) -> str | None:
    """What to warn of at the start: other machines may reach this, and no key is set. None: all is well."""
    host = settings.host
    if settings.api_key is not None or host == "localhost" or _is_loopback(host):
        return None
    return (
        f"bound to {host} without a key: whoever reaches port {settings.port} can use this service; set"
        " LAUNCHBOUND_API_KEY, or see that only trusted machines reach it"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
