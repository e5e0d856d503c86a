"""A cluster without Ray, whose nodes run nothing: tests say what each submitted order tells."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtests.fleet.cluster import NodeLost, Unusable
from loadtests.fleet.messages import Ended, Event, NodeFacts, Order, Piece, Refused, Sent, Started
from loadtests.fleet.node import installed_code
from loadtests.fleet.nodes import Node

Script = list[Event | BaseException]


def node(name: str, kind: str | None, *, cpus: float = 2, gpus: float = 0) -> Node:
    return Node(id=name * 8, address=name, kind=kind, cpus=cpus, gpus=gpus)


def facts(machine: str) -> NodeFacts:
    return NodeFacts(code=installed_code(), machine=machine, niceness=0)


def brought(folder: Path, exit_code: int = 0, seconds: float = 60.0) -> Script:
    """What a node tells whose sweep wrote `folder`, in pieces."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder))
    data = packed.getvalue()
    half = len(data) // 2
    pieces = [Piece(data=data[:half]), Piece(data=data[half:])]
    return [Started(facts=facts("")), Ended(exit_code=exit_code, seconds=seconds), *pieces, Sent()]


class FakeCluster:
    """`machines` are those of the nodes, by address; a node that is not there has one of its own."""

    def __init__(self, *nodes: Node, script: Callable[[Node, int], Script]) -> None:
        self.alive = list(nodes)
        self.machines: dict[str, str] = {}
        self.facts: dict[str, NodeFacts] = {}
        self.submitted: list[tuple[Node, Order]] = []
        self.cancelled: list[int] = []
        self.running: dict[int, tuple[Node, Script]] = {}
        self.most_at_once = 0
        self.seconds = 0.0
        self.on_wait: Callable[[], None] = lambda: None
        self._script = script

    def nodes(self) -> list[Node]:
        return list(self.alive)

    def ask(self, node: Node) -> NodeFacts:
        return self.facts.get(node.address) or facts(self.machines.get(node.address, node.address))

    def submit(self, node: Node, order: Order) -> int:
        number = len(self.submitted)
        self.submitted.append((node, order))
        self.running[number] = node, list(self._script(node, number))
        self.most_at_once = max(self.most_at_once, len(self.running))
        return number

    def wait(self, handles: Sequence[int], seconds: float) -> int | None:
        assert self.running.keys() >= set(handles), "of one that has ended nothing can be waited for"
        self.seconds += seconds
        self.on_wait()
        return handles[0] if handles else None

    def next(self, handle: int) -> Event:
        _, script = self.running[handle]
        event = script.pop(0)
        if isinstance(event, NodeLost | Unusable | Refused | Sent):
            on, _ = self.running.pop(handle)
            if isinstance(event, NodeLost):
                self.alive = [one for one in self.alive if one.id != on.id]
        if isinstance(event, BaseException):
            raise event
        return event

    def cancel(self, handle: int) -> None:
        if self.running.pop(handle, None) is not None:
            self.cancelled.append(handle)
