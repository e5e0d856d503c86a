"""Which nodes a fleet can use: kinds of machines, what is missing of them, and which are one machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtests.fleet.messages import NodeFacts
from loadtests.fleet.node import other_code
from loadtests.fleet.record import Code, FleetTask

LABEL = "launchbound-machine"
"""A node's label in Ray, whose value is its kind of machine."""

LOCAL_KIND = "local"
"""The kind of the one node that the command starts itself."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive; `kind` None: it does not say. `cpus` and `gpus` are what it offers in all."""

    id: str
    address: str
    kind: str | None
    cpus: float
    gpus: float

    @property
    def name(self) -> str:
        """For people: an address may have several nodes."""
        return f"{self.address} ({self.id[:8]})"

    def fits(self, task: FleetTask) -> bool:
        """Whether it is of the task's kind and has its device."""
        return self.kind == task.machine and (task.device == "cpu" or self.gpus > 0)


@dataclass(frozen=True, slots=True)
class Asked:
    """A node that was asked; `facts` None: it did not answer, and `said` is why it is not used."""

    node: Node
    facts: NodeFacts | None
    said: str | None


def judged(node: Node, facts: NodeFacts, code: Code) -> Asked:
    """Whether a node that answered is used: with the driver's own code only."""
    if facts.code != code:
        return Asked(node, facts, other_code(facts.code, code))
    if node.kind is not None and node.cpus < 1:
        return Asked(node, facts, "it offers no CPU to Ray: start it without --num-cpus=0")
    return Asked(node, facts, None)


def kinds_of(nodes: Iterable[Node]) -> list[str]:
    """The kinds of machines among `nodes`."""
    return sorted({node.kind for node in nodes if node.kind is not None})


def lacks(task: FleetTask, nodes: Iterable[Asked]) -> str | None:
    """Why no node can run `task` now, with the remedy; None where one can."""
    of_kind = [one for one in nodes if one.node.kind == task.machine]
    usable = [one for one in of_kind if one.said is None]
    if any(one.node.fits(task) for one in usable):
        return None
    if usable:
        return f"no node of kind {task.machine} offers a GPU to Ray"
    if of_kind:
        return "; ".join(f"node {one.node.name} is not used: {one.said}" for one in of_kind)
    return (
        f"there is no node of kind {task.machine}: start one with "
        f"`ray start --address=HEAD --labels {LABEL}={task.machine}`"
    )


def without_device(task: FleetTask, nodes: Iterable[Asked]) -> bool:
    """Whether its kind of machine is there, and lacks its device."""
    usable = [one.node for one in nodes if one.node.kind == task.machine and one.said is None]
    return bool(usable) and not any(node.fits(task) for node in usable)


def chosen(task: FleetTask, nodes: Sequence[Asked], busy: Iterable[str]) -> Asked | None:
    """The node to run `task` on: one whose machine is not `busy`, tried least often; None: none is free."""
    taken = set(busy)
    tried = [one.node for one in task.tries]
    free = [
        one
        for one in nodes
        if one.said is None
        and one.facts is not None
        and one.node.fits(task)
        and one.facts.machine not in taken
    ]
    return min(free, key=lambda one: tried.count(one.node.id), default=None)


def notes(nodes: Sequence[Asked]) -> list[str]:
    """What a user should know of the nodes before anything runs."""
    found = [f"node {one.node.name} is not used: {one.said}" for one in nodes if one.said is not None]
    found += [
        f"node {one.node.name} says no kind of machine, and is not used: `ray start … --labels {LABEL}=KIND`"
        for one in nodes
        if one.said is None and one.node.kind is None
    ]
    found += [
        f"node {one.node.name} runs Ray's tasks at niceness {one.facts.niceness}, after all else on its "
        "machine: start it with RAY_worker_niceness=0 in its environment"
        for one in nodes
        if one.node.kind is not None and one.facts is not None and one.facts.niceness > 0
    ]
    return found
