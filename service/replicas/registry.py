"""Which replicas there are, and which command owns them: what replicas and commands tell each other."""

from __future__ import annotations

import msgspec


class ReplicaPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a replica is: `actor` is its name in Ray, `name` the short form that people read.

    `address` is host:port of its own listener, `owner` the command that deployed it.
    """

    actor: str
    name: str
    owner: str
    node: str
    address: str
    pid: int
    cores: list[int]
    gpu: bool


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The registry at one moment: `owner`, whose replicas serve, and `deploying`, who replaces them.

    `restore`: a replacement was given up, and the owner has to deploy its own again. `failures`: why a
    replica of a command did not start, by command.
    """

    owner: str | None
    deploying: str | None
    restore: bool
    replicas: list[ReplicaPlace]
    failures: dict[str, str]


class Registry:
    """One per cluster. A replica is in it from when it is ready until it ends, or is found to have ended."""

    def __init__(self) -> None:
        self._owner: str | None = None
        self._deploying: str | None = None
        self._restore = False
        self._replicas: dict[str, ReplicaPlace] = {}
        self._failures: dict[str, str] = {}

    def begin(self, command: str) -> None:
        """`command` begins to deploy; the owner of what runs stays it until that is complete."""
        self._deploying, self._restore = command, False
        self._failures.pop(command, None)

    def complete(self, command: str) -> None:
        """What `command` has deployed serves: it is the owner."""
        self._owner = command
        self._deploying = None if self._deploying == command else self._deploying

    def give_up(self, command: str) -> None:
        """What `command` was deploying is not to serve: the owner, if there is one, deploys its own again."""
        if self._deploying == command:
            self._deploying, self._restore = None, self._owner is not None

    def leave(self, command: str) -> None:
        """`command` has ended its replicas."""
        self._owner = None if self._owner == command else self._owner
        self._deploying = None if self._deploying == command else self._deploying

    def add(self, replica: ReplicaPlace) -> None:
        """It is ready."""
        self._replicas[replica.actor] = replica

    def remove(self, actors: list[str]) -> None:
        """They have ended, or are about to."""
        for actor in actors:
            self._replicas.pop(actor, None)

    def failed(self, command: str, reason: str) -> None:
        """A replica that `command` deployed did not start."""
        self._failures[command] = reason

    def view(self) -> View:
        """Everything, replicas in the order of their names."""
        return View(
            owner=self._owner,
            deploying=self._deploying,
            restore=self._restore,
            replicas=sorted(self._replicas.values(), key=lambda replica: replica.name),
            failures=dict(self._failures),
        )
