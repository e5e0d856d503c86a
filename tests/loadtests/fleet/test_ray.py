"""Fleets on Ray: two simulated nodes of this machine, one of which dies; and what a command leaves behind."""

from __future__ import annotations

import gc
import importlib.util
import ipaddress
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtests.compare.page import FLEET_PAGE_FILE, make_fleet_picture
from loadtests.fleet.run import LABEL, Fleet, alive, begin, installed_code, read_fleet, tasks_of
from service.ray_cluster import STARTS, TOO_SLOW, connected, environment
from tests.loadtests.fleet.fake_sweep import command
from tests.support.processes import descendants, gone, without
from tests.support.serving import until

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what keeps Ray on loopback
    "RAY_worker_niceness": "0",
}
STORE_BYTES = 80 * 2**20


class SimulatedNodes:
    """A head that runs nothing, and the nodes that are added."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address

    def add(self, kind: str, cpus: int = 1) -> Any:
        """A node of `kind` joins."""
        return patiently(
            lambda: self._cluster.add_node(
                num_cpus=cpus,
                labels={LABEL: kind},
                object_store_memory=STORE_BYTES,
                include_dashboard=False,
                node_ip_address="127.0.0.1",
            )
        )

    def kill(self, node: Any) -> None:
        """Its processes are killed, as by a power cut."""
        self._cluster.remove_node(node, allow_graceful=False)


@contextmanager
def simulated_nodes() -> Iterator[SimulatedNodes]:
    """A cluster without nodes yet, which ends with the block, its folder too."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    was = ray_constants.ENABLE_RAY_CLUSTER  # read from the environment where Ray was imported before
    ray_constants.ENABLE_RAY_CLUSTER = False
    Path("/tmp/ray").mkdir(exist_ok=True)  # where Cluster notes its address, wherever its folder is
    folder = tempfile.mkdtemp(prefix="lb-nodes-", dir="/tmp")
    arguments = {
        "num_cpus": 0,
        "include_dashboard": False,
        "node_ip_address": "127.0.0.1",
        "object_store_memory": STORE_BYTES,
        "temp_dir": folder,
    }
    others = set(psutil.Process().children())
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=arguments))
    try:
        yield SimulatedNodes(cluster)
    finally:
        cluster.shutdown()
        # Of a node that ended by itself, or was too slow, Ray leaves processes unreaped and pipes open, on
        # which later tests of this process would fail.
        for child in set(psutil.Process().children()) - others:
            child.kill()
            child.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        shutil.rmtree(folder, ignore_errors=True)
        ray_constants.ENABLE_RAY_CLUSTER = was
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def patiently(start: Callable[[], Any]) -> Any:
    """What `start` returns, which starts a node of Ray, tried again where that is too slow for Ray."""
    for left in reversed(range(STARTS)):
        before = set(psutil.Process().children())
        try:
            return start()
        except Exception as error:
            if TOO_SLOW not in str(error) or not left:
                raise
            for child in set(psutil.Process().children()) - before:
                for process in (*child.children(recursive=True), child):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                child.wait()
    raise AssertionError("the last try returns or raises")


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
        without("Ray is not installed: pip install -e '.[ray]'")
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
