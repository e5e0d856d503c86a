"""Which replicas there are and whose they are, what Serve is told of them, and the file for Prometheus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.front.app import bound_socket
from service.front.settings import Settings
from tests.support.processes import without

try:
    from service.replicas.application import (
        Place,
        Registry,
        deployment_options,
        free_port,
        replica_count,
        share_of_each,
        write_targets,
    )
except ModuleNotFoundError:
    without("Ray is not installed: pip install launchbound[ray]")


def place(name: str, command: str = "a") -> Place:
    return Place(
        actor=f"SERVE_REPLICA::{name}",
        name=name,
        command=command,
        node="10.0.0.7",
        address=f"10.0.0.7:{40_000 + ord(name[0])}",
        cores=[0],
    )


def test_a_replica_is_in_the_registry_until_it_ends() -> None:
    registry = Registry()
    registry.add(place("y"))
    registry.add(place("x"))
    assert [replica.name for replica in registry.view().replicas] == ["x", "y"]
    registry.remove(["SERVE_REPLICA::x", "SERVE_REPLICA::unknown"])
    assert [replica.name for replica in registry.view().replicas] == ["y"]


@pytest.mark.parametrize(("stays", "left"), [(False, ["b"]), (True, ["a", "b"])])
def test_a_command_is_taken_over_once_the_replicas_of_the_next_one_serve(
    stays: bool, left: list[str]
) -> None:
    registry = Registry()
    registry.deploys("a", stays)
    registry.serves("a")
    registry.deploys("b", False)
    assert registry.view().commands == ["a", "b"]
    registry.serves("b")
    assert (registry.view().commands, registry.view().deployed) == (left, "b")


def test_a_command_that_gives_up_leaves_the_replicas_to_the_one_before_and_the_last_one_ends_them() -> None:
    registry = Registry()
    registry.deploys("a", False)
    registry.serves("a")
    registry.deploys("b", False)
    assert not registry.leaves("b")
    assert (registry.view().commands, registry.view().deployed) == (["a"], "b")
    registry.deploys("a", False)
    assert registry.leaves("a")


def test_a_command_that_was_killed_holds_up_none_that_serves_after_it() -> None:
    registry = Registry()
    registry.deploys("killed", False)
    registry.serves("killed")
    registry.deploys("b", False)
    registry.serves("b")
    assert registry.leaves("b")


@pytest.mark.parametrize(
    ("text", "count"), [("1", (1, 1)), ("4", (4, 4)), ("1-4", (1, 4)), (" 2-2 ", (2, 2))]
)
def test_a_count_is_a_number_or_two(text: str, count: tuple[int, int]) -> None:
    assert replica_count(text) == count


@pytest.mark.parametrize("text", ["0", "0-2", "3-1", "-1", "two", "1-", "1001", "1-2-3", ""])
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="give a number from 1 to 1000, or two as 1-4"):
        replica_count(text)


def options(least: int = 2, most: int = 2, gpu: bool = False, **settings: object) -> dict[str, object]:
    return deployment_options(Settings(**settings), (least, most), 2, gpu)


def test_a_fixed_number_does_not_scale_and_a_range_does_on_what_waits_and_runs() -> None:
    assert options(3, 3)["num_replicas"] == 3
    assert "autoscaling_config" not in options(3, 3)
    found = options(1, 4)
    assert "num_replicas" not in found
    scaling = {"min_replicas": 1, "initial_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 5}
    assert found["autoscaling_config"] == scaling


def test_a_full_queue_is_refused_by_the_replica_and_not_by_serve() -> None:
    assert isinstance(most := options(max_queue=100)["max_ongoing_requests"], int)
    assert most > 100


def test_a_replica_that_ends_has_as_long_as_its_longest_request() -> None:
    found = options(request_timeout_seconds=300.0, drain_seconds=7.0)
    assert isinstance(seconds := found["graceful_shutdown_timeout_s"], float)
    assert seconds > 307.0


@pytest.mark.parametrize(("gpu", "gpus"), [(True, 1), (False, 0)])
def test_a_replica_has_its_cores_and_a_gpu_where_it_runs_on_one(gpu: bool, gpus: int) -> None:
    assert options(gpu=gpu)["ray_actor_options"] == {"num_cpus": 2, "num_gpus": gpus}


@pytest.mark.parametrize(
    ("device", "wanted", "replicas", "resources", "share"),
    [
        ("cpu", None, 1, {"CPU": 2.0}, (2, False)),
        ("cpu", None, 2, {"CPU": 2.0}, (1, False)),
        ("cpu", 4, 4, {"CPU": 16.0, "GPU": 8.0}, (4, False)),
        ("auto", None, 2, {"CPU": 16.0}, (2, False)),
        ("auto", None, 2, {"CPU": 16.0, "GPU": 2.0}, (2, True)),
        ("cuda", None, 2, {"CPU": 16.0, "GPU": 2.0}, (2, True)),
    ],
)
def test_each_has_two_cores_where_there_are_so_many_and_a_gpu_where_it_runs_on_one(
    device: str, wanted: int | None, replicas: int, resources: dict[str, float], share: tuple[int, bool]
) -> None:
    assert share_of_each(Settings(device=device), wanted, replicas, resources) == share


@pytest.mark.parametrize(
    ("device", "wanted", "replicas", "remedy"),
    [
        ("cuda", None, 2, "Ray has 0 GPUs: ask for fewer, or serve with --device cpu"),
        ("cpu", None, 3, "there are 2: ask for fewer by --replicas or --replica-cpus"),
        ("cpu", 2, 2, "there are 2: ask for fewer by --replicas or --replica-cpus"),
    ],
)
def test_more_than_there_is_is_refused_with_the_remedy(
    device: str, wanted: int | None, replicas: int, remedy: str
) -> None:
    with pytest.raises(ValueError, match=remedy):
        share_of_each(Settings(device=device), wanted, replicas, {"CPU": 2.0})


def test_a_port_that_is_taken_is_refused_with_the_remedy() -> None:
    with (
        bound_socket("127.0.0.1", 0) as taken,
        pytest.raises(ValueError, match="choose another --port"),
    ):
        free_port("127.0.0.1", taken.getsockname()[1])


def test_the_targets_have_an_address_and_an_instance_each(tmp_path: Path) -> None:
    path = tmp_path / "new" / "targets.json"
    write_targets(path, [place("x"), place("y")])
    assert json.loads(path.read_text()) == [
        {"targets": ["10.0.0.7:40120"], "labels": {"instance": "x@10.0.0.7:40120", "node": "10.0.0.7"}},
        {"targets": ["10.0.0.7:40121"], "labels": {"instance": "y@10.0.0.7:40121", "node": "10.0.0.7"}},
    ]
    write_targets(path, [])
    assert json.loads(path.read_text()) == []


def test_targets_are_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "targets.json"
    write_targets(path, [place("x")])
    whole = path.read_bytes()

    def broken(_: Path, document: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", broken)
    with pytest.raises(OSError, match="No space left"):
        write_targets(path, [place("x"), place("y")])
    assert path.read_bytes() == whole


def test_targets_that_did_not_change_are_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    write_targets(path, [place("x")])
    inode = path.stat().st_ino
    write_targets(path, [place("x")])
    assert path.stat().st_ino == inode
