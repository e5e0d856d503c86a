"""What passes between a fleet's driver and its nodes: an order one way, events and facts the other."""

from __future__ import annotations

import msgspec

from loadtests.fleet.record import Code

SWEEP_COMMAND = ("-m", "launchbound", "sweep")
"""Run by the node's own Python, with the options of a task behind it."""


class NodeFacts(msgspec.Struct, kw_only=True, frozen=True):
    """What a node says of itself. `machine` is the same of all nodes that share a running kernel."""

    code: Code
    machine: str
    niceness: int


class Order(msgspec.Struct, kw_only=True, frozen=True):
    """A task as a node gets it: the text of a plan file, options of `sweep`, and the driver's code."""

    plan: str
    options: list[str]
    code: Code
    command: tuple[str, ...] = SWEEP_COMMAND


class Started(msgspec.Struct, kw_only=True, frozen=True):
    """The sweep begins."""

    facts: NodeFacts


class Refused(msgspec.Struct, kw_only=True, frozen=True):
    """The node does not run the task; it may have been installed anew since it was asked."""

    said: str


class Ended(msgspec.Struct, kw_only=True, frozen=True):
    """The sweep has ended, after `seconds` by the node's clock."""

    exit_code: int
    seconds: float


class Piece(msgspec.Struct, kw_only=True, frozen=True):
    """The next bytes of a zip file of the results folder."""

    data: bytes


class Sent(msgspec.Struct, kw_only=True, frozen=True):
    """All pieces have been sent."""


Event = Started | Refused | Ended | Piece | Sent
