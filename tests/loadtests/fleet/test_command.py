"""How the command `fleet` ends where it is stopped: its exit code, what it says, and what is kept."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import launchbound
from loadtests.fleet import run
from loadtests.fleet.plan import read_fleet
from loadtests.fleet.report import PAGE_FILE
from loadtests.plan.presets import make_plan
from service import ray_cluster as cluster
from service.cli.options import EXIT_FAILED, EXIT_MACHINE
from tests.loadtests.fleet.fake_ray import FakeRay, brought, node
from tests.support.made_results import make_results

pytestmark = pytest.mark.slow

PLAN = 'name = "which"\nmachines = ["a", "b"]\n'


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = make_plan("quick", 1, ["eager", "inference_mode"], [1])
    return make_results(tmp_path_factory.mktemp("results"), plan=plan)


def stopped_by(error: BaseException, task: str, results: Path, folder: Path) -> Result:
    """The command, on a cluster without Ray, which `error` stops while it unpacks `task`."""
    ray = FakeRay(node("a", "a"), node("b", "b"), script=lambda task, _: [task[0], brought(results)])
    unpack = run.unpack

    def unpacked(data: bytes, into: Path) -> None:
        if into.name == task:
            raise error
        unpack(data, into)

    @contextmanager
    def connected(*_: Any) -> Iterator[FakeRay]:
        yield ray

    (folder / "plan.toml").write_text(PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "unpack", unpacked)
        patch.setattr(cluster, "connected", connected)
        patch.setattr(cluster, "environment", lambda _: {})
        return CliRunner().invoke(
            launchbound.app, ["fleet", str(folder / "plan.toml"), f"--out={folder / 'out'}"]
        )


def test_an_interruption_while_a_folder_comes_in_leaves_a_report_of_the_others(
    tmp_path: Path, results: Path
) -> None:
    ended = stopped_by(KeyboardInterrupt(), "b-cpu-float32-tiny", results, tmp_path)
    assert ended.exit_code == EXIT_FAILED, ended.output
    assert f"launchbound fleet --resume {tmp_path / 'out'}" in ended.output
    assert (tmp_path / "out" / PAGE_FILE).is_file()
    fleet = read_fleet(tmp_path / "out")
    assert fleet.stopped_because == "interrupted"
    assert [task.state for task in fleet.tasks] == ["complete", "not begun"]


def test_an_interruption_while_the_first_folder_comes_in_ends_as_one_before_anything_had_finished(
    tmp_path: Path, results: Path
) -> None:
    ended = stopped_by(KeyboardInterrupt(), "a-cpu-float32-tiny", results, tmp_path)
    assert ended.exit_code == 130, ended.output
    assert f"launchbound fleet --resume {tmp_path / 'out'}" in ended.output
    assert read_fleet(tmp_path / "out").stopped_because == "interrupted"


def test_a_disk_that_is_full_when_a_folder_comes_in_is_named_with_how_to_go_on(
    tmp_path: Path, results: Path
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    ended = stopped_by(full, "b-cpu-float32-tiny", results, tmp_path)
    assert ended.exit_code == EXIT_MACHINE, ended.output
    assert f"no space left for {tmp_path / 'out'}; free some, then go on with" in ended.output
    fleet = read_fleet(tmp_path / "out")
    assert "No space left on device" in (fleet.stopped_because or "")
    assert [task.state for task in fleet.tasks] == ["complete", "not begun"]
