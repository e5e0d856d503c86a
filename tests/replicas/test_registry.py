"""Which replicas there are and whose they are, and the file that tells Prometheus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.replicas.registry import Registry, ReplicaPlace
from service.replicas.targets import TargetsFile


def place(name: str, owner: str = "a") -> ReplicaPlace:
    port = 40_000 + ord(name[0])
    return ReplicaPlace(
        actor=f"SERVE_REPLICA::{name}",
        name=name,
        owner=owner,
        node="10.0.0.7",
        address=f"10.0.0.7:{port}",
        pid=1,
        cores=[0],
        gpu=False,
    )


def test_a_replica_is_in_it_until_it_ends() -> None:
    registry = Registry()
    registry.add(place("y"))
    registry.add(place("x"))
    assert [replica.name for replica in registry.view().replicas] == ["x", "y"]
    registry.remove(["SERVE_REPLICA::x", "SERVE_REPLICA::unknown"])
    assert [replica.name for replica in registry.view().replicas] == ["y"]


def test_the_newest_command_whose_replicas_serve_owns_them() -> None:
    registry = Registry()
    registry.begin("a")
    assert registry.view().owner is None
    registry.complete("a")
    registry.begin("b")
    assert (registry.view().owner, registry.view().deploying) == ("a", "b")
    registry.complete("b")
    assert (registry.view().owner, registry.view().deploying) == ("b", None)


def test_replicas_that_were_ended_have_no_owner_to_deploy_them_again() -> None:
    registry = Registry()
    registry.begin("a")
    registry.complete("a")
    registry.leave("b")
    assert registry.view().owner == "a"
    registry.leave("a")
    registry.begin("b")
    registry.give_up("b")
    assert (registry.view().owner, registry.view().restore) == (None, False)


def test_a_replacement_that_is_given_up_is_for_the_owner_to_undo_once() -> None:
    registry = Registry()
    registry.begin("a")
    registry.complete("a")
    registry.begin("b")
    registry.give_up("c")
    assert not registry.view().restore
    registry.give_up("b")
    assert registry.view().restore
    registry.begin("a")
    assert not registry.view().restore


def test_a_failure_is_of_one_command_and_forgotten_when_it_begins_again() -> None:
    registry = Registry()
    registry.begin("a")
    registry.failed("a", "no such model")
    assert registry.view().failures == {"a": "no such model"}
    registry.begin("a")
    assert registry.view().failures == {}


def test_the_targets_have_an_address_and_an_instance_each(tmp_path: Path) -> None:
    file = TargetsFile(tmp_path / "new" / "targets.json")
    file.write([place("x"), place("y")])
    assert json.loads(file.path.read_text()) == [
        {"targets": ["10.0.0.7:40120"], "labels": {"instance": "x@10.0.0.7:40120", "node": "10.0.0.7"}},
        {"targets": ["10.0.0.7:40121"], "labels": {"instance": "y@10.0.0.7:40121", "node": "10.0.0.7"}},
    ]
    file.write([])
    assert json.loads(file.path.read_text()) == []


def test_targets_are_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = TargetsFile(tmp_path / "targets.json")
    file.write([place("x")])
    whole = file.path.read_bytes()

    def broken(_: Path, document: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", broken)
    with pytest.raises(OSError, match="No space left"):
        file.write([place("x"), place("y")])
    assert file.path.read_bytes() == whole


def test_targets_that_did_not_change_are_not_written_again(tmp_path: Path) -> None:
    file = TargetsFile(tmp_path / "targets.json")
    file.write([place("x")])
    inode = file.path.stat().st_ino
    file.write([place("x")])
    assert file.path.stat().st_ino == inode
