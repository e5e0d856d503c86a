"""What a fleet asks of a cluster, and the nodes of it that were asked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from loadtests.fleet.messages import Event, NodeFacts, Order
from loadtests.fleet.nodes import Asked, Node, judged
from loadtests.fleet.record import Code

Handle = TypeVar("Handle", bound=Hashable)


class NodeLost(Exception):
    """A node, or Ray's process on it, has ended; the message is Ray's reason."""


class Unusable(Exception):
    """A node cannot run a fleet's tasks; the message has the remedy."""


class Cluster(Protocol[Handle]):
    """Runs tasks on nodes."""

    def nodes(self) -> list[Node]:
        """Those that are alive."""

    def ask(self, node: Node) -> NodeFacts:
        """What the node says of itself. Raises NodeLost and Unusable."""

    def submit(self, node: Node, order: Order) -> Handle:
        """Run `order` on `node`, which no other task then shares."""

    def wait(self, handles: Sequence[Handle], seconds: float) -> Handle | None:
        """One that has something to tell; None where none has within `seconds`."""

    def next(self, handle: Handle) -> Event:
        """What it tells next; Sent and Refused end it. Raises NodeLost and Unusable, which do too."""

    def cancel(self, handle: Handle) -> None:
        """End it at once; nothing where it has ended."""


class RollCall(Generic[Handle]):
    """The nodes that are alive with what they said, each asked once."""

    def __init__(self, cluster: Cluster[Handle], code: Code) -> None:
        self._cluster, self._code = cluster, code
        self._asked: dict[str, Asked] = {}

    def nodes(self) -> list[Asked]:
        """Ask those that have joined. One without a kind is not asked: it is not used."""
        alive = self._cluster.nodes()
        for node in alive:
            if node.id not in self._asked and (asked := self._ask(node)):
                self._asked[node.id] = asked
        return [self._asked[node.id] for node in alive if node.id in self._asked]

    def _ask(self, node: Node) -> Asked | None:
        """None: it was lost while it was asked."""
        if node.kind is None:
            return Asked(node, None, None)
        try:
            return judged(node, self._cluster.ask(node), self._code)
        except Unusable as error:
            return Asked(node, None, str(error))
        except NodeLost:
            return None
