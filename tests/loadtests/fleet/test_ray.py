"""Fleets on Ray: two simulated nodes of this machine, one of which dies; and what a command leaves behind."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtests.fleet.plan import read_fleet, read_fleet_plan
from loadtests.fleet.report import PAGE_FILE, make_fleet_report
from loadtests.fleet.run import begin
from service.ray_cluster import connected, environment
from tests.loadtests.fleet.fake_sweep import command
from tests.loadtests.fleet.simulated_nodes import SimulatedNodes, simulated_nodes
from tests.support.processes import descendants, gone, without
from tests.support.serving import until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 120.0
PLAN = """\
name = "which"
{machines}
[sweep]
name = "small"
modes = ["eager", "inference_mode"]
batch_sizes = [1]
rounds = 8
[[sweep.closed_loop]]
requests = 2
"""

LAUNCHBOUND = """\
import sys
from tests.loadtests.fleet.fake_sweep import main
assert sys.argv[1] == "sweep"
raise SystemExit(main([{control!r}, *sys.argv[2:]]))
"""
"""Stands for the command line where a node runs `-m launchbound sweep`."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[SimulatedNodes]:
    if importlib.util.find_spec("ray") is None:
        without("Ray is not installed: pip install launchbound[ray]")
    with simulated_nodes() as found:
        yield found


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """Where stand-ins of sweeps are told to wait."""
    folder = tmp_path / "control"
    folder.mkdir()
    os.mkfifo(folder / "never")
    return folder


def times(control: Path, ending: str) -> dict[str, float]:
    return {path.stem: float(path.read_text()) for path in control.glob(f"*.{ending}")}


@pytest.mark.long
def test_a_task_whose_node_dies_is_run_again_on_one_that_joins_and_the_report_is_complete(
    nodes: SimulatedNodes, control: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = nodes.add("a")
    (control / "hold").touch()
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(machines='machines = ["a", "b"]'))
    for name, value in environment(nodes.address).items():
        monkeypatch.setenv(name, value)
    pool = ThreadPoolExecutor(1)  # Ray starts nodes from the main thread only
    with connected(nodes.address) as ray:
        options = {"wait_seconds": PATIENCE_SECONDS, "command": command(control)}
        running = pool.submit(begin, ray, read_fleet_plan(path), tmp_path / "out", print, **options)
        held = control / "held"
        until(lambda: held.exists() or running.done(), "a sweep that waits", PATIENCE_SECONDS)
        lost = list(times(control, "begun"))
        nodes.add("b")  # not before, or its task might be the one that holds
        nodes.kill(doomed)
        nodes.add("a")
        fleet = running.result(PATIENCE_SECONDS)
    pool.shutdown()
    first, second = fleet.tasks
    assert (first.state, second.state) == ("complete", "complete")
    assert len({one.node for one in first.tries}) == len(first.tries) == 2
    assert [one.said for one in first.tries] == ["its node was lost", None]
    assert len(second.tries) == 1
    for task in fleet.tasks:
        assert task.control_seconds is not None
        assert task.control_seconds > 0
    found = make_fleet_report(tmp_path / "out")
    assert found["absent"] == {}
    assert (tmp_path / "out" / PAGE_FILE).is_file()
    (name,) = lost
    until(lambda: gone(int(name.rpartition("-")[2])), "the end of the lost sweep")
    assert_one_after_the_other(control)


def assert_one_after_the_other(control: Path) -> None:
    """No sweep began while another one ran, since all nodes are this machine."""
    ended = times(control, "ended")
    spans = sorted((begun, ended[name]) for name, begun in times(control, "begun").items() if name in ended)
    assert len(spans) == 2
    for (_, end), (begun, _) in pairwise(spans):
        assert end <= begun


def started(folder: Path, control: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command, with one node of its own, whose sweeps are stand-ins."""
    (folder / "launchbound.py").write_text(LAUNCHBOUND.format(control=str(control)))
    (folder / "plan.toml").write_text(PLAN.format(machines=""))
    return subprocess.Popen(
        [sys.executable, str(ROOT / "launchbound.py"), "fleet", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output


def test_nothing_is_left_of_a_command_that_was_ended_and_its_fleet_is_gone_on_with(
    control: Path, tmp_path: Path, nodes: SimulatedNodes
) -> None:
    (control / "hold").touch()
    process = started(tmp_path, control, "plan.toml", "--out=out")
    held = control / "held"
    until(lambda: held.exists() or process.poll() is not None, "a sweep that waits", PATIENCE_SECONDS)
    assert process.poll() is None, outcome(process)
    theirs = descendants(process.pid)
    reachable = sockets_beyond_loopback([process.pid, *theirs])
    process.terminate()
    code, output = outcome(process)
    assert code == 130, output
    assert "fleet --resume out" in output
    until(lambda: all(gone(pid) for pid in theirs), "the end of all it started")
    assert reachable == []
    assert [task.state for task in read_fleet(tmp_path / "out").tasks] == ["not begun"]
    finished, output = outcome(started(tmp_path, control, "--resume=out"))
    assert finished == 0, output
    (task,) = read_fleet(tmp_path / "out").tasks
    assert (task.machine, task.state) == ("local", "complete")
    assert "authentication" not in output


def sockets_beyond_loopback(pids: list[int]) -> list[Any]:
    """What these processes listen on that another machine could reach."""
    found = []
    for pid in pids:
        try:
            listening = [
                c for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN
            ]
        except psutil.NoSuchProcess:
            continue
        found += [one.laddr for one in listening if not loopback(one.laddr.ip)]
    return found


def loopback(address: str) -> bool:
    """Also of an IPv4 address that an IPv6 socket names."""
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback
