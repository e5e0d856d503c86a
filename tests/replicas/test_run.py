"""The command's run on a cluster that is a few lines of Python: who owns the replicas, and who ends them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from service.front.server import bound_socket
from service.front.settings import Settings
from service.replicas.count import ReplicaCount
from service.replicas.options import Share
from service.replicas.registry import Registry, ReplicaPlace, View
from service.replicas.run import NotStarted, ReplicasRun
from service.replicas.targets import TargetsFile


class FakeCluster:
    """Replicas start at once, unless their command is among `refused`; then the reason is told."""

    address = "127.0.0.1:6379"

    def __init__(self, own: bool = False, cpus: float = 4, gpus: float = 0) -> None:
        self.own, self.registry, self.removed = own, Registry(), False
        self.has = {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}
        self.refused = dict[str, str]()
        self.deployed = list[tuple[str, Share]]()

    def resources(self) -> dict[str, float]:
        return self.has

    def open_proxy(self, host: str, port: int) -> str:
        return f"http://{host}:{port}"

    def deploy(self, settings: Settings, count: ReplicaCount, share: Share, command: str) -> None:
        self.deployed.append((command, share))
        if reason := self.refused.get(command):
            self.registry.failed(command, reason)
            return
        self.registry.remove([replica.actor for replica in self.view().replicas])
        for number in range(count.least):
            self.registry.add(
                ReplicaPlace(
                    actor=f"{command}{number}",
                    name=f"r{number}",
                    owner=command,
                    node="127.0.0.1",
                    address=f"127.0.0.1:{40_000 + number}",
                    pid=1,
                    cores=[number],
                    gpu=share.gpu,
                )
            )

    def settled(self) -> bool:
        return True

    def trouble(self) -> str | None:
        return None

    def view(self) -> View:
        return self.registry.view()

    def begin(self, command: str) -> None:
        self.registry.begin(command)

    def complete(self, command: str) -> None:
        self.registry.complete(command)

    def give_up(self, command: str) -> None:
        self.registry.give_up(command)

    def remove(self, command: str) -> None:
        self.registry.leave(command)
        self.removed = True


def interrupt(_: float) -> None:
    raise KeyboardInterrupt


def run(
    cluster: FakeCluster,
    folder: Path,
    wait: Callable[[float], None] = interrupt,
    count: str = "2",
    cores: int | None = None,
    **settings: object,
) -> ReplicasRun:
    given = Settings(**{"port": 0, "device": "cpu", **settings})
    return ReplicasRun(
        given, ReplicaCount.parse(count), cores, cluster, TargetsFile(folder / "targets.json"), wait
    )


def names(folder: Path) -> list[str]:
    return [one["targets"][0] for one in json.loads((folder / "targets.json").read_text())]


def test_a_signal_ends_what_the_command_began_and_empties_the_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = FakeCluster()

    def look_then_interrupt(_: float) -> None:
        assert names(tmp_path) == ["127.0.0.1:40000", "127.0.0.1:40001"]
        raise KeyboardInterrupt

    assert run(cluster, tmp_path, look_then_interrupt).serve() == 0
    assert cluster.removed
    assert names(tmp_path) == []
    assert "launchbound: serving on http://127.0.0.1:" in capsys.readouterr().out


@pytest.mark.parametrize("own", [False, True])
def test_a_command_that_was_taken_over_leaves_the_replicas_unless_the_cluster_is_its_own(
    own: bool, tmp_path: Path
) -> None:
    cluster = FakeCluster(own)
    looks = list[None]()

    def taken_over(_: float) -> None:
        looks.append(None)
        if len(looks) == 3:
            raise KeyboardInterrupt
        cluster.begin("another")
        cluster.complete("another")

    assert run(cluster, tmp_path, taken_over).serve() == 0
    assert cluster.removed is own
    assert len(looks) == (3 if own else 1)
    assert (names(tmp_path) == []) is own


def test_the_command_that_started_the_cluster_serves_again_when_the_one_that_took_over_has_ended(
    tmp_path: Path,
) -> None:
    cluster = FakeCluster(own=True)
    waits = list[None]()

    def look(_: float) -> None:
        waits.append(None)
        if len(waits) in (1, 4):
            cluster.begin("another")
            cluster.complete("another")
        elif len(waits) in (2, 5):
            cluster.remove("another")
            cluster.registry.remove([replica.actor for replica in cluster.view().replicas])
        elif len(waits) == 3:
            assert (cluster.view().owner, len(names(tmp_path / "over"))) == (over.command, 2)
        else:
            raise KeyboardInterrupt

    over = run(cluster, tmp_path / "over", look)
    assert over.serve() == 0
    assert [command for command, _ in cluster.deployed] == [over.command] * 3
    assert names(tmp_path / "over") == []


def test_nothing_is_deployed_again_while_a_third_command_already_deploys(tmp_path: Path) -> None:
    cluster = FakeCluster(own=True)
    waits = list[None]()

    def look(_: float) -> None:
        waits.append(None)
        if len(waits) == 1:
            cluster.begin("second")
            cluster.complete("second")
            cluster.remove("second")
            cluster.begin("third")
        elif len(waits) == 3:
            raise KeyboardInterrupt

    assert run(cluster, tmp_path, look).serve() == 0
    assert len(cluster.deployed) == 1


def test_a_command_that_ends_while_another_replaces_its_replicas_leaves_them_to_that(tmp_path: Path) -> None:
    cluster = FakeCluster()

    def being_replaced(_: float) -> None:
        cluster.begin("another")
        raise KeyboardInterrupt

    assert run(cluster, tmp_path, being_replaced).serve() == 0
    assert not cluster.removed


def test_a_replacement_that_does_not_start_is_undone_by_the_command_before(tmp_path: Path) -> None:
    cluster = FakeCluster()
    second = run(cluster, tmp_path / "second")
    cluster.refused[second.command] = "no model 'none': name a folder"
    waits = list[None]()

    def replaced_in_vain(_: float) -> None:
        waits.append(None)
        if len(waits) > 1:
            raise KeyboardInterrupt
        with pytest.raises(NotStarted, match="no model 'none': name a folder"):
            second.serve()
        assert not cluster.removed

    first = run(cluster, tmp_path / "first", replaced_in_vain)
    assert first.serve() == 0
    assert [command for command, _ in cluster.deployed] == [first.command, second.command, first.command]
    assert cluster.removed


def test_settings_that_no_replica_starts_with_leave_nothing_behind(tmp_path: Path) -> None:
    cluster = FakeCluster()
    only = run(cluster, tmp_path)
    cluster.refused[only.command] = "no model 'none': name a folder"
    with pytest.raises(NotStarted, match="no model 'none'"):
        only.serve()
    assert cluster.removed


@pytest.mark.parametrize(
    ("device", "gpus", "share"),
    [
        ("cpu", 8, Share(2, False)),
        ("auto", 0, Share(2, False)),
        ("auto", 2, Share(2, True)),
        ("cuda", 2, Share(2, True)),
    ],
)
def test_a_replica_has_a_gpu_where_it_runs_on_one(
    device: str, gpus: int, share: Share, tmp_path: Path
) -> None:
    cluster = FakeCluster(gpus=gpus)
    run(cluster, tmp_path, device=device).serve()
    assert cluster.deployed[0][1] == share


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"device": "cuda"}, "Ray has 0 GPUs: ask for fewer, or serve with --device cpu"),
        ({"cores": 4}, "there are 4: ask for fewer by --replicas or --replica-cpus"),
    ],
)
def test_what_cannot_be_placed_is_refused_before_anything_is_deployed(
    options: dict[str, object], remedy: str, tmp_path: Path
) -> None:
    cluster = FakeCluster()
    with pytest.raises(ValueError, match=remedy):
        run(cluster, tmp_path, **options).serve()  # type: ignore[arg-type]
    assert not cluster.deployed


def test_a_port_that_is_taken_is_refused_with_the_remedy(tmp_path: Path) -> None:
    taken = bound_socket("127.0.0.1", 0)
    with pytest.raises(ValueError, match="choose another --port"):
        run(FakeCluster(own=True), tmp_path, port=taken.getsockname()[1]).serve()
    taken.close()
