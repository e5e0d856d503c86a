"""X"""

from __future__ import annotations

from typing import ClassVar, Literal

from service.protocol.messages import Problem

Rejection = Literal[
    "queue_full", "too_large", "bad_request", "not_ready", "unauthorised", "draining", "connections"
]


class LaunchboundError(Exception):
    """Base of the tree. `type`, `message` and `param` are what the client reads.

    `rejection` is set where the request was refused before it ran: the label it is counted under.
    """

    status: ClassVar[int] = 500
    rejection: ClassVar[Rejection | None] = None
    default_type: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.type = type or self.default_type
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds

    def headers(self) -> dict[str, str]:
        """Headers that go with this answer."""
        return {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}


class BadRequest(LaunchboundError):
    """The request cannot be served as it is; `param` names the field to change."""

    status = 422
    rejection: ClassVar[Rejection | None] = "bad_request"
    default_type = "invalid_request"


class UnknownMode(BadRequest):
    """No such mode, or not one of those this instance was started with."""

    status = 404
    default_type = "unknown_mode"


class BodyTooLarge(BadRequest):
    """More bytes than `max_body_bytes`."""

    status = 413
    rejection = "too_large"
    default_type = "body_too_large"

    def headers(self) -> dict[str, str]:
        """What is left of the body is not read, so no other request can follow on this connection."""
        return {"Connection": "close"}


class Unauthorised(BadRequest):
    """The API key is missing or wrong."""

    status = 401
    rejection = "unauthorised"
    default_type = "unauthorised"

    def headers(self) -> dict[str, str]:
        """Names the scheme, as RFC 6750 requires."""
        return {"WWW-Authenticate": 'Bearer realm="launchbound"'}


class NotFound(LaunchboundError):
    """Nothing has that name; the message states where the names are listed."""

    status = 404
    default_type = "not_found"


class NotMeasured(LaunchboundError):
    """The answer needs measurements that this instance has not made; the message states what to run."""

    status = 409
    default_type = "not_measured"


class RunInProgress(LaunchboundError):
    """A sweep is measuring: its requests carry `X-Launchbound-Run`, and the last one is not long ago."""

    status = 409
    default_type = "run_in_progress"


class CannotSample(LaunchboundError):
    """A request asks to be sampled where that cannot be done; the message has the reason."""

    status = 409
    default_type = "cannot_sample"


class AnatomyBusy(LaunchboundError):
    """Another study is under way; they run one at a time."""

    status = 409
    default_type = "anatomy_busy"


class QueueFull(LaunchboundError):
    """As many requests as `max_queue` are accepted and unfinished."""

    status = 429
    rejection = "queue_full"
    default_type = "queue_full"


class Unavailable(LaunchboundError):
    """Temporarily not possible: retry after `retry_after_seconds`."""

    status = 503
    default_type = "unavailable"

    def __init__(
        self, message: str, *, type: str | None = None, param: str | None = None, retry_after_seconds: int = 5
    ) -> None:
        super().__init__(message, type=type, param=param, retry_after_seconds=retry_after_seconds)


class ModeNotReady(Unavailable):
    """The mode is warming or failed, or the engine is starting."""

    rejection = "not_ready"
    default_type = "mode_not_ready"


class EngineLost(Unavailable):
    """The engine process ended while it had the job; a new one is being started."""

    default_type = "engine_lost"


class OutOfMemory(Unavailable):
    """The device had no memory for this batch."""

    default_type = "out_of_memory"


class StudyInterrupted(Unavailable):
    """A study that did not complete; requested again, it runs in a new process."""

    default_type = "study_interrupted"


class ShutDown(Unavailable):
    """The service ended before it had answered this request, which it had accepted."""

    default_type = "shut_down"


class Draining(Unavailable):
    """The service finishes its running requests and accepts no new ones."""

    rejection = "draining"
    default_type = "draining"


class DeadlinePassed(LaunchboundError):
    """`request_timeout_seconds` went by before the answer was complete."""

    status = 504
    default_type = "timeout"


class ClientGone(LaunchboundError):
    """The client closed the connection before its answer."""

    status = 499
    default_type = "cancelled"


class EngineFailed(LaunchboundError):
    """The engine could not run the job; the message is its own."""


OF_PROBLEM: dict[str, type[LaunchboundError]] = {
    "prompt_too_long": BadRequest,
    "unknown_mode": UnknownMode,
    "not_found": NotFound,
    "invalid_request": BadRequest,
    "unsupported_here": BadRequest,
    "mode_not_ready": ModeNotReady,
    "mode_failed": ModeNotReady,
    "out_of_memory": OutOfMemory,
    "timeout": DeadlinePassed,
    "cancelled": ClientGone,
}


def from_problem(problem: Problem) -> LaunchboundError:
    """The exception for a problem that the engine reported; unknown types are `EngineFailed`, 500."""
    return OF_PROBLEM.get(problem.type, EngineFailed)(problem.message, type=problem.type, param=problem.param)


def error_body(type_: str, message: str, param: str | None = None) -> dict[str, dict[str, str | None]]:
    """The one error shape."""
    return {"error": {"type": type_, "message": message, "param": param}}


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
