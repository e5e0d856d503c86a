"""Everything that can go wrong for a client, as one tree of exceptions, each with its status code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from service.records import Problem

Rejection = Literal[
    "queue_full", "too_large", "bad_request", "not_ready", "unauthorised", "draining", "connections"
]


CLOSES = {"Connection": "close"}
"""Where the rest of a request is not read, so that no other can follow on its connection."""

SCHEME = {"WWW-Authenticate": 'Bearer realm="launchbound"'}
"""As RFC 6750 requires."""


class LaunchboundError(Exception):
    """Base of the tree. The client gets `type`, `message` and `param`.

    `rejection` is the label that a request refused before it ran is counted under.
    """

    status: ClassVar[int] = 500
    rejection: ClassVar[Rejection | None] = None
    default_type: ClassVar[str] = "internal"
    own_headers: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(
        cls,
        status: int | None = None,
        type: str | None = None,
        rejected: Rejection | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        cls.status = status or cls.status
        cls.default_type = type or cls.default_type
        cls.rejection = rejected or cls.rejection
        cls.own_headers = headers or cls.own_headers

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
        retry = {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}
        return {**self.own_headers, **retry}


class BadRequest(LaunchboundError, status=422, type="invalid_request", rejected="bad_request"):
    """The request cannot be served as it is; `param` names the field to change."""


class UnknownMode(BadRequest, status=404, type="unknown_mode"): ...


class WrongWorkload(BadRequest, status=409, type="wrong_workload"):
    """The route is for another kind of model; the message names the right one."""


class BodyTooLarge(BadRequest, status=413, type="body_too_large", rejected="too_large", headers=CLOSES): ...


class Unauthorised(BadRequest, status=401, type="unauthorised", rejected="unauthorised", headers=SCHEME): ...


class NotFound(LaunchboundError, status=404, type="not_found"):
    """Nothing has that name; the message states where the names are listed."""


class NotMeasured(LaunchboundError, status=409, type="not_measured"):
    """The answer needs measurements that this instance has not made; the message states what to run."""


class RunInProgress(LaunchboundError, status=409, type="run_in_progress"):
    """A sweep is measuring: its requests carry `X-Launchbound-Run`, and the last one is not long ago."""


class CannotSample(LaunchboundError, status=409, type="cannot_sample"):
    """A request asks to be sampled where that cannot be done; the message has the reason."""


class AnatomyBusy(LaunchboundError, status=409, type="anatomy_busy"): ...


class QueueFull(LaunchboundError, status=429, type="queue_full", rejected="queue_full"): ...


class Unavailable(LaunchboundError, status=503, type="unavailable"):
    """Temporarily not possible: retry after `retry_after_seconds`."""

    def __init__(
        self, message: str, *, type: str | None = None, param: str | None = None, retry_after_seconds: int = 5
    ) -> None:
        super().__init__(message, type=type, param=param, retry_after_seconds=retry_after_seconds)


class ModeNotReady(Unavailable, type="mode_not_ready", rejected="not_ready"):
    """The mode is warming or failed, or the engine is starting."""


class EngineLost(Unavailable, type="engine_lost"):
    """The engine process ended while it had the job; a new one is being started."""


class OutOfMemory(Unavailable, type="out_of_memory"): ...


class StudyInterrupted(Unavailable, type="study_interrupted"):
    """A study that did not complete; requested again, it runs in a new process."""


class ShutDown(Unavailable, type="shut_down"):
    """The service ended before it had answered this request, which it had accepted."""


class Draining(Unavailable, type="draining", rejected="draining"): ...


class DeadlinePassed(LaunchboundError, status=504, type="timeout"): ...


class ClientGone(LaunchboundError, status=499, type="cancelled"): ...


class Malformed(BadRequest, status=400, type="malformed_request"): ...


class HeadTooLarge(BadRequest, status=431, type="head_too_large", rejected="too_large"): ...


class TooSlow(BadRequest, status=408, type="too_slow", headers=CLOSES): ...


class NotJson(BadRequest, status=415, type="not_json"):
    """A body of another type: what a web page can send to other hosts without asking."""


class HostNotAllowed(BadRequest, status=403, type="host_not_allowed"):
    """The `Host` names neither this service nor one of `allowed_hosts`."""


class CrossSite(BadRequest, status=403, type="cross_site"):
    """Sent by a browser on behalf of a page of somebody else."""


class TooManyConnections(LaunchboundError, status=503, type="too_many_connections", rejected="connections"):
    """As many connections as `max_connections` are open, and this one did not ask for health or metrics."""


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
    """The exception for a problem that the engine reported; of an unknown type it is 500."""
    kind = OF_PROBLEM.get(problem.type, LaunchboundError)
    return kind(problem.message, type=problem.type, param=problem.param)


def error_body(type_: str, message: str, param: str | None = None) -> dict[str, dict[str, str | None]]:
    return {"error": {"type": type_, "message": message, "param": param}}
