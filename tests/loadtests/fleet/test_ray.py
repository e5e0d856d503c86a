"""Fleets on Ray: two simulated nodes of this machine, one of which dies; and what a command leaves behind."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtests.compare.page import FLEET_PAGE_FILE, make_fleet_picture
from loadtests.fleet.run import Fleet, alive, begin, installed_code, read_fleet, tasks_of
from service.ray_cluster import connected, environment
from tests.loadtests.fleet.fake_sweep import command
from tests.loadtests.fleet.simulated_nodes import simulated_nodes
from tests.support.processes import descendants, gone, without
from tests.support.serving import until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 120.0
PLAN = """\
name = "small"
modes = ["eager", "inference_mode"]
batch_sizes = [1]
rounds = 8
[[closed_loop]]
requests = 2
"""

LAUNCHBOUND = """\
import sys
from tests.loadtests.fleet.fake_sweep import main
assert sys.argv[1] == "sweep"
raise SystemExit(main([{control!r}, *sys.argv[2:]]))
"""
"""Stands for the command line where a node runs `-m launchbound sweep`."""


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """Where stand-ins of sweeps are told to wait."""
    folder = tmp_path / "control"
    folder.mkdir()
    os.mkfifo(folder / "never")
    return folder


def test_a_task_whose_node_dies_is_run_again_on_another_and_the_report_is_complete(
    control: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("ray") is None:
        without("Ray is not installed: pip install launchbound[ray]")
    (control / "hold").touch()
    out = tmp_path / "out"
    # Ray starts nodes from the main thread only.
    with simulated_nodes() as nodes, ThreadPoolExecutor(1) as pool:
        both = [nodes.add("a"), nodes.add("a")]
        for name, value in environment(nodes.address).items():
            monkeypatch.setenv(name, value)
        with connected(nodes.address) as ray:
            tasks = tasks_of(alive(ray), ["tiny"], ["float32"])
            fleet = Fleet(started="", sweep=PLAN, code=installed_code(), tasks=tasks)
            running = pool.submit(begin, ray, fleet, out, print, command(control))
            held = control / "held"
            until(lambda: held.exists() or running.done(), "a sweep that waits", PATIENCE_SECONDS)
            (lost,) = (int(path.stem.rpartition("-")[2]) for path in control.glob("*.begun"))
            above = {process.pid for process in psutil.Process(lost).parents()}
            (its_node,) = (node for node in both if raylet(node) in above)
            nodes.kill(its_node)
            running.result(PATIENCE_SECONDS)
    (task,) = read_fleet(out).tasks
    assert task.state == "complete"
    assert len(list(control.glob("*.begun"))) == 2
    until(lambda: gone(lost), "the end of the lost sweep")
    assert make_fleet_picture(out)["absent"] == {}
    assert (out / FLEET_PAGE_FILE).is_file()


def raylet(node: Any) -> int:
    """The process id of what starts the workers of a simulated node."""
    return int(node.all_processes["raylet"][0].process.pid)


def started(folder: Path, control: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command, with one node of its own, whose sweeps are stand-ins."""
    (folder / "launchbound.py").write_text(LAUNCHBOUND.format(control=str(control)))
    (folder / "plan.toml").write_text(PLAN)
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


def test_nothing_is_left_of_a_command_that_was_ended(control: Path, tmp_path: Path) -> None:
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
