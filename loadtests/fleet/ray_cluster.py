"""A cluster of Ray, joined by its address or started on loopback. Nothing else here imports Ray."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from time import sleep
from typing import Any

from loadtests.fleet.cluster import NodeLost, Unusable
from loadtests.fleet.left_over import other_owner, prefix_of
from loadtests.fleet.messages import Event, NodeFacts, Order, Refused, Sent
from loadtests.fleet.node import node_facts, run_order
from loadtests.fleet.nodes import LABEL, LOCAL_KIND, Node
from service.replicas.joining import MODE, NotJoined, joining
from service.replicas.patience import TooBusy, patiently

OBJECT_STORE_BYTES = 100 * 2**20
"""Of the cluster of one's own; pieces of 4 MiB pass through it."""

PIECES_AHEAD = 8
_FOLDERS = "lb-ray"
"""Short: the paths of Ray's sockets, within, are at most 107 characters long."""

ANSWER_SECONDS = 120.0
"""A node starts a Python process before it answers."""

_NEVER: Mapping[str, str] = {"RAY_USAGE_STATS_ENABLED": "0"}
_OF_OUR_OWN: Mapping[str, str] = {
    # Ray replaces 127.0.0.1 by the machine's own address, unless it is told that no other machine can join.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",  # 15 by default: all else on the machine would go before the sweep
}


class NoCluster(RuntimeError):
    """There is no cluster to run on; the message has the remedy."""


@contextmanager
def connected(address: str | None) -> Iterator[RayCluster]:
    """The cluster at `address`, or one of one node, which ends with the block.

    Raises NoCluster, and ModuleNotFoundError without the package of the extra `ray`.
    """
    if address is not None and address.startswith("ray://"):
        raise NoCluster(
            "the Ray client (ray://) is not supported: run on a node of the cluster, with HOST:PORT"
        )
    # Read by Ray when it is imported, and inherited by its processes.
    os.environ.update({**_NEVER, **(_OF_OUR_OWN if address is None else _to_join(address))})
    if address is None:
        os.environ.setdefault(MODE, "token")  # as Ray has it by itself, with a warning
    import ray

    other_owner(_FOLDERS)
    folder = None if address is not None else tempfile.mkdtemp(prefix=prefix_of(_FOLDERS))
    try:
        _join(ray, address) if address is not None else _start(ray, folder)
        yield RayCluster(ray)
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _to_join(address: str) -> dict[str, str]:
    try:
        return joining(address)
    except NotJoined as error:
        raise NoCluster(str(error)) from error


def _join(ray: Any, address: str) -> None:  # noqa: ANN401 - Ray's types are partial
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise NoCluster(
            f"no cluster answers at {address} ({error}): run this on one of its nodes, with the address that "
            "`ray start --head` printed"
        ) from error


def _start(ray: Any, folder: str | None) -> None:  # noqa: ANN401
    start = partial(
        ray.init,
        address="local",
        labels={LABEL: LOCAL_KIND},
        include_dashboard=False,  # whose job interface runs what anyone sends it
        object_store_memory=OBJECT_STORE_BYTES,
        # A sweep's output is in its folder; Ray's own would be mixed into ours.
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=folder,
    )
    try:
        patiently(start)
    except TooBusy as error:
        raise NoCluster(str(error)) from None


class RayCluster:
    """The `Cluster` of a fleet by Ray's tasks: a streaming generator per order, which Ray does not retry."""

    def __init__(self, ray: Any) -> None:  # noqa: ANN401
        self._ray = ray
        self._streams: dict[int, Any] = {}
        self._on: dict[int, Node] = {}
        self._dead: set[str] = set()
        self._numbers = count(1)

    def nodes(self) -> list[Node]:
        """Those that are alive; the cluster's head may learn of a death after its task did."""
        return [
            Node(
                id=one["NodeID"],
                address=one["NodeManagerAddress"],
                kind=one["Labels"].get(LABEL),
                cpus=one["Resources"].get("CPU", 0.0),
                gpus=one["Resources"].get("GPU", 0.0),
            )
            for one in self._ray.nodes()
            if one["Alive"] and one["NodeID"] not in self._dead
        ]

    def ask(self, node: Node) -> NodeFacts:
        """As in Cluster; takes no CPU."""
        answer = self._ray.remote(node_facts).options(num_cpus=0, **self._placed(node)).remote()
        with self._named_errors(node):
            facts: NodeFacts = self._ray.get(answer, timeout=ANSWER_SECONDS)
        return facts

    def submit(self, node: Node, order: Order) -> int:
        """As in Cluster: takes all CPUs and GPUs of the node."""
        number = next(self._numbers)
        self._on[number] = node
        self._streams[number] = (
            self._ray.remote(run_order)
            .options(
                num_cpus=node.cpus,
                num_gpus=node.gpus,
                num_returns="streaming",
                _generator_backpressure_num_objects=PIECES_AHEAD,
                **self._placed(node),
            )
            .remote(order)
        )
        return number

    def wait(self, handles: Sequence[int], seconds: float) -> int | None:
        """As in Cluster."""
        if not handles:
            sleep(seconds)
            return None
        streams = [self._streams[handle] for handle in handles]
        ready, _ = self._ray.wait(streams, num_returns=1, timeout=seconds)
        return next((h for h in handles for found in ready if self._streams[h] is found), None)

    def next(self, handle: int) -> Event:
        """As in Cluster."""
        try:
            with self._named_errors(self._on[handle]):
                event: Event = self._ray.get(next(self._streams[handle]))
        except (NodeLost, Unusable):
            del self._streams[handle]
            raise
        if isinstance(event, Sent | Refused):
            del self._streams[handle]
        return event

    def cancel(self, handle: int) -> None:
        """As in Cluster."""
        if (stream := self._streams.pop(handle, None)) is not None:
            self._ray.cancel(stream, force=True)

    def _placed(self, node: Node) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        return {"scheduling_strategy": strategy, "max_retries": 0}

    @contextmanager
    def _named_errors(self, node: Node) -> Iterator[None]:
        """Ray's errors as those of Cluster: what the code on a node raised will not go away on another."""
        from ray.exceptions import (
            GetTimeoutError,
            NodeDiedError,
            RayError,
            RayTaskError,
            TaskUnschedulableError,
        )

        try:
            yield
        except RayTaskError as error:
            raise Unusable(_of_code(error)) from error
        except GetTimeoutError as error:
            raise NodeLost(f"it did not answer within {ANSWER_SECONDS:.0f} s") from error
        except RayError as error:
            if isinstance(error, NodeDiedError | TaskUnschedulableError):
                self._dead.add(node.id)
            raise NodeLost(f"{type(error).__name__}: {_first_sentence(error)}") from error


def _first_sentence(error: Exception) -> str:
    """Ray goes on with what to look at where."""
    return " ".join(str(error).split()).partition(". ")[0].rstrip(".")


def _of_code(error: Exception) -> str:
    """What was raised on the node, in a line; a module that is not there means another installation."""
    last = str(error).strip().rpartition("\n")[2]
    if "ModuleNotFoundError" in str(error) or "failed to import" in str(error):
        return f"it lacks a module of this launchbound ({last}): install the same on all nodes"
    return f"its code raised {last}"
