"""What clusters have in common: when a task has ended on one, and that ending it again is no error."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from loadtests.fleet.cluster import Cluster, NodeLost, Unusable
from loadtests.fleet.messages import Order, Refused, Sent, Started
from loadtests.fleet.node import installed_code
from loadtests.fleet.nodes import Node
from loadtests.fleet.ray_cluster import RayCluster
from tests.support.fake_cluster import FakeCluster, Script, facts
from tests.support.lacking import without

ORDER = Order(plan="", options=[], code=installed_code(), command=())
ON = Node(id="ab" * 28, address="a", kind="k", cpus=2, gpus=0)  # the form of an id is Ray's
STARTED = Started(facts=facts(""))


class Ray:
    """In place of the module: a task tells `script`, whose errors its results raise."""

    def __init__(self, script: Script) -> None:
        self.cancelled: list[int] = []
        self._script = script

    def remote(self, _: object) -> Any:
        submitted = SimpleNamespace(remote=lambda _: iter(list(self._script)))
        return SimpleNamespace(options=lambda **_: submitted)

    def get(self, event: Any) -> Any:
        if isinstance(event, BaseException):
            raise event
        return event

    def cancel(self, stream: Iterator[Any], force: bool) -> None:
        assert force
        self.cancelled.append(1)


@pytest.fixture(params=["fake", "ray"])
def clusters(request: pytest.FixtureRequest) -> Any:
    """Makes a cluster whose tasks tell a script, and the list of those that it has ended by `cancel`."""
    if request.param == "ray" and importlib.util.find_spec("ray") is None:
        without("Ray is not installed: pip install launchbound[ray]")

    def made(script: Script) -> tuple[Cluster[int], list[int]]:
        if request.param == "ray":
            ray = Ray(script)
            return RayCluster(ray), ray.cancelled
        fake = FakeCluster(ON, script=lambda *_: list(script))
        return fake, fake.cancelled

    return made


@pytest.mark.parametrize(
    "last", [Sent(), Refused(said="why"), NodeLost("it died"), Unusable("other code")], ids=repr
)
def test_to_end_a_task_that_has_ended_is_no_error_and_does_nothing(clusters: Any, last: Any) -> None:
    cluster, cancelled = clusters([STARTED, last])
    handle = cluster.submit(ON, ORDER)
    assert cluster.next(handle) == STARTED
    if isinstance(last, Exception):
        with pytest.raises(type(last)):
            cluster.next(handle)
    else:
        assert cluster.next(handle) == last
    cluster.cancel(handle)
    assert cancelled == []


def test_a_task_goes_on_where_listening_to_it_was_interrupted_and_can_be_ended_once(clusters: Any) -> None:
    cluster, cancelled = clusters([KeyboardInterrupt(), STARTED])
    handle = cluster.submit(ON, ORDER)
    with pytest.raises(KeyboardInterrupt):
        cluster.next(handle)
    cluster.cancel(handle)
    cluster.cancel(handle)
    assert len(cancelled) == 1
