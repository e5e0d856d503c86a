"""What a comparison with rivals measures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loadtests.peers.catalogue import Rival


@dataclass(frozen=True, slots=True)
class PeersPlan:
    """`rounds` visits of every cell with `calls` timed calls each, and of every server with `requests`.

    `only` names the rivals that take part; empty: all.
    """

    rounds: int = 12
    calls: int = 3
    requests: int = 10
    batches: tuple[int, ...] = (1, 4, 16)
    prompt_tokens: int = 30
    new_tokens: int = 32
    seed: int = 0
    only: tuple[str, ...] = ()

    def wants(self, rivals: Iterable[Rival]) -> list[Rival]:
        """Those of `rivals` that take part."""
        return [rival for rival in rivals if not self.only or rival.name in self.only]
