"""A Ray cluster of several nodes on this machine's loopback, whose nodes can be killed and join again."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from loadtests.fleet.run import LABEL

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what keeps Ray on loopback
    "RAY_worker_niceness": "0",
}
STORE_BYTES = 80 * 2**20
TRIES = 4
_TOO_LATE = "timed out during startup"
"""Ray gives a node 30 s to start, which may pass on a busy machine."""


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
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=arguments))
    try:
        yield SimulatedNodes(cluster)
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        ray_constants.ENABLE_RAY_CLUSTER = was
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def patiently(start: Callable[[], Any]) -> Any:
    """What `start` returns, which starts a node of Ray, tried again where that is too slow for Ray."""
    for left in reversed(range(TRIES)):
        before = set(psutil.Process().children())
        try:
            return start()
        except Exception as error:
            if _TOO_LATE not in str(error) or not left:
                raise
            for child in set(psutil.Process().children()) - before:
                for process in (*child.children(recursive=True), child):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                child.wait()
    raise AssertionError("the last try returns or raises")
