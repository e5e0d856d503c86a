"""What the command asks of Ray and Serve."""

from __future__ import annotations

from typing import Protocol

from service.front.settings import Settings
from service.replicas.count import ReplicaCount
from service.replicas.options import Share
from service.replicas.registry import View


class ClusterEnded(RuntimeError):
    """Ray, or what runs in it, has gone."""


class Cluster(Protocol):
    """Ray and Serve; every call raises ClusterEnded where they have gone."""

    @property
    def own(self) -> bool:
        """Whether they end with this command."""

    @property
    def address(self) -> str:
        """What another command joins them by."""

    def resources(self) -> dict[str, float]:
        """What the nodes have in all, as CPU and GPU."""

    def open_proxy(self, host: str, port: int) -> str:
        """Start Serve with its proxy there, unless it runs; returns the URL of its proxy."""

    def deploy(self, settings: Settings, count: ReplicaCount, share: Share, command: str) -> None:
        """Begin to run replicas; those that run are replaced one after another."""

    def settled(self) -> bool:
        """Whether as many run as are wanted, all of the newest settings."""

    def trouble(self) -> str | None:
        """What keeps them from running; None where nothing does."""

    def view(self) -> View:
        """The registry, without those that ended before they could say so."""

    def begin(self, command: str) -> None:
        """As the registry."""

    def complete(self, command: str) -> None:
        """As the registry."""

    def give_up(self, command: str) -> None:
        """As the registry."""

    def remove(self, command: str) -> None:
        """End the replicas, which are `command`'s, once what they run has ended."""
