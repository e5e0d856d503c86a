"""How many replicas, what each has, and what Serve is told of them."""

from __future__ import annotations

import pytest

from service.front.settings import Settings
from service.replicas.count import ReplicaCount
from service.replicas.local_ray import environment_for
from service.replicas.options import Share, cores_each, deployment_options


@pytest.mark.parametrize(
    ("text", "least", "most"), [("1", 1, 1), ("4", 4, 4), ("1-4", 1, 4), (" 2-2 ", 2, 2)]
)
def test_a_count_is_a_number_or_two(text: str, least: int, most: int) -> None:
    assert ReplicaCount.parse(text) == ReplicaCount(least, most)


@pytest.mark.parametrize("text", ["0", "0-2", "3-1", "-1", "two", "1-", "1001", "1-2-3", ""])
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="give a number from 1 to 1000, or two as 1-4"):
        ReplicaCount.parse(text)


def options(count: str = "2", gpu: bool = False, **settings: object) -> dict[str, object]:
    return deployment_options(Settings(**settings), ReplicaCount.parse(count), Share(2, gpu))


def test_a_fixed_number_does_not_scale() -> None:
    found = options("3")
    assert found["num_replicas"] == 3
    assert "autoscaling_config" not in found


def test_a_range_scales_on_what_waits_and_runs() -> None:
    found = options("1-4")
    assert "num_replicas" not in found
    scaling = {"min_replicas": 1, "initial_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 5}
    assert found["autoscaling_config"] == scaling


def test_a_full_queue_is_refused_by_the_replica_and_not_by_serve() -> None:
    found = options(max_queue=100)
    assert isinstance(most := found["max_ongoing_requests"], int)
    assert most > 100


def test_a_replica_that_ends_has_as_long_as_its_longest_request() -> None:
    found = options(request_timeout_seconds=300.0, drain_seconds=7.0)
    assert isinstance(seconds := found["graceful_shutdown_timeout_s"], float)
    assert seconds > 307.0


@pytest.mark.parametrize(("gpu", "gpus"), [(True, 1), (False, 0)])
def test_a_replica_has_its_cores_and_a_gpu_where_it_runs_on_one(gpu: bool, gpus: int) -> None:
    assert options(gpu=gpu)["ray_actor_options"] == {"num_cpus": 2, "num_gpus": gpus}


@pytest.mark.parametrize(
    ("wanted", "replicas", "cores", "each"),
    [(None, "1", 2, 2), (None, "2", 2, 1), (None, "2", 16, 2), (4, "1-4", 16, 4), (None, "8", None, 2)],
)
def test_a_replica_has_two_cores_where_there_are_so_many(
    wanted: int | None, replicas: str, cores: int | None, each: int
) -> None:
    assert cores_each(wanted, ReplicaCount.parse(replicas), cores) == each


@pytest.mark.parametrize(("wanted", "replicas"), [(None, "3"), (2, "1-2")])
def test_more_cores_than_there_are_is_refused_with_the_remedy(wanted: int | None, replicas: str) -> None:
    with pytest.raises(ValueError, match="there are 2: ask for fewer by --replicas or --replica-cpus"):
        cores_each(wanted, ReplicaCount.parse(replicas), 2)


@pytest.mark.parametrize(
    ("address", "here"), [(None, True), ("127.0.0.1:6379", True), ("10.0.0.1:6379", False)]
)
def test_ray_sends_no_statistics_and_listens_on_this_machine_alone_where_it_is_ours(
    address: str | None, here: bool
) -> None:
    found = environment_for(address)
    assert found["RAY_USAGE_STATS_ENABLED"] == "0"
    assert ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" in found) is here
