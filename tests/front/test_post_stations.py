"""The way of one POST through the front: which modules it enters, in which order, and none from below."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from unittest.mock import patch

import pytest

from service.front import app, child_process
from tests.support.serving import Front, running

pytestmark = pytest.mark.slow

SERVICE = Path(__file__).parents[2] / "service"
STATIONS = [
    "front.access",
    "front.routes.generate",
    "front.routes.state",
    "front.routes.body",
    "front.schemas",
    "front.routes.engine_call",
    "front.engine_client",
    "front.child_process",
    "frames",
    "front.request_timing",
    "front.routes.answers",
]
RETURN = ["front.child_process", "frames", "front.engine_client"]
"""The outcome's way from the engine's socket to the coroutine that waits for it."""

AFTERWARDS = {
    "front.metrics.recorder",
    "front.metrics.series",
    "front.advice",
    "front.logs",
}
"""Entered only by the observation, which waits for the engine's next job, a reader of the metrics or time."""


class Call(NamedTuple):
    """One call into a module of ours. `caller`: the nearest module of ours on the stack; `root`: the last."""

    root: str
    caller: str | None
    callee: str
    function: str


class Tracer:
    """A profile function that records calls; resuming a coroutine or generator is not a call."""

    def __init__(self) -> None:
        self.recording = False
        self.calls: list[Call] = []
        self._seen: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Record `frame` where it belongs to the service and is entered for the first time."""
        # First of all: a start makes a million calls.
        if not self.recording or event != "call" or frame in self._seen:
            return
        if (callee := module_of(frame)) is None:
            return
        self._seen.add(frame)
        stack = list(callers(frame))
        root = stack[-1] if stack else callee
        self.calls.append(Call(root, stack[0] if stack else None, callee, frame.f_code.co_qualname))


def module_of(frame: FrameType) -> str | None:
    """'front.schemas' for a frame of that module; None for what is not of the service."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(SERVICE):
        return None
    return ".".join(path.relative_to(SERVICE).with_suffix("").parts)


def callers(frame: FrameType) -> Iterator[str]:
    """The modules of ours on the stack above `frame`, nearest first."""
    above = frame.f_back
    while above is not None:
        if (module := module_of(above)) is not None:
            yield module
        above = above.f_back


async def unwatched(*_: object) -> None:
    """Nobody looks."""


@contextmanager
def traced_front() -> Iterator[tuple[Front, Tracer]]:
    """A front with an API key whose threads are all profiled."""
    tracer = Tracer()
    threading.setprofile(tracer)
    try:
        # Neither the engine's signs of life nor who looks for them belong to a request; nor does a moment
        # that passes without one.
        with (
            patch.object(child_process, "check_until_hung", unwatched),
            patch.object(app, "LAG_INTERVAL_SECONDS", 3600.0),
            running({"api_key": "key"}, bare_protocol=True, mute=True) as front,
        ):
            front.http.headers["Authorization"] = "Bearer key"
            front.await_ready()
            yield front, tracer
    finally:
        threading.setprofile(None)


def traced_post() -> tuple[list[Call], list[Call]]:
    """The calls of one POST until its answer is written, and those of who reads the metrics next."""
    with traced_front() as (front, tracer):
        tracer.recording = True
        assert front.generate().status_code == 200
        assert front.http.get("/metrics").status_code == 200
        tracer.recording = False
    # The event loop measures its lag beside every request, and is no part of any.
    calls = [call for call in tracer.calls if call.root != "front.app"]
    first = next(i for i, call in enumerate(calls) if call.callee == "front.routes.health")
    return calls[:first], calls[first:]


def test_a_post_passes_eleven_stations_and_none_is_entered_from_below() -> None:
    """A station is a module of `service.front` or `service` of which a function is called.

    Counted from the call of the first middleware until the answer is written to the HTTP socket, for a plain
    generate request with an API key. "Below" is what is first entered later: no call may lead from a station
    to an earlier one. Two things are not calls from below: a coroutine that goes on after an `await`, and the
    outcome's way back, which the event loop begins at the engine's socket; its stations are listed exactly.
    """
    calls, _ = traced_post()
    stations = list(dict.fromkeys(call.callee for call in calls))
    assert stations == STATIONS
    returning = [call for call in calls if call.root == "front.child_process"]
    assert list(dict.fromkeys(call.callee for call in returning)) == RETURN
    from_below = [
        call
        for call in calls
        if call not in returning
        and call.caller is not None
        and stations.index(call.caller) > stations.index(call.callee)
    ]
    assert from_below == []


def test_the_observation_comes_after_the_answer_and_is_the_only_one_to_enter_the_metrics() -> None:
    before, after = traced_post()
    assert AFTERWARDS.isdisjoint(call.callee for call in before)
    assert {call.callee for call in after} >= AFTERWARDS
    assert all(call.callee not in AFTERWARDS or call.root != "front.routes.generate" for call in after)
