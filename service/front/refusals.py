"""What is refused before a route has seen it: by the size, the pace or the origin of a request."""

from __future__ import annotations

from service.front.errors import BadRequest, LaunchboundError


class Malformed(BadRequest):
    """No HTTP that the parser understands."""

    status = 400
    default_type = "malformed_request"


class HeadTooLarge(BadRequest):
    """Request line and headers over their limit."""

    status = 431
    rejection = "too_large"
    default_type = "head_too_large"


class TooSlow(BadRequest):
    """A request that did not arrive within its time."""

    status = 408
    default_type = "too_slow"

    def headers(self) -> dict[str, str]:
        """The rest of the request may still be on its way, so no other can follow on this connection."""
        return {"Connection": "close"}


class NotJson(BadRequest):
    """A body of another type: what a web page can send to other hosts without asking."""

    status = 415
    default_type = "not_json"


class HostNotAllowed(BadRequest):
    """The `Host` names neither this service nor one of `allowed_hosts`."""

    status = 403
    default_type = "host_not_allowed"


class CrossSite(BadRequest):
    """Sent by a browser on behalf of a page of somebody else."""

    status = 403
    default_type = "cross_site"


class TooManyConnections(LaunchboundError):
    """As many connections as `max_connections` are open, and this one did not ask for health or metrics."""

    status = 503
    rejection = "connections"
    default_type = "too_many_connections"
