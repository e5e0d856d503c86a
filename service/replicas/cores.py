"""The cores of a replica: as many as Ray counted for it, which no other replica of this node has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from service.front.machine import CoreClaims

WAIT_SECONDS = 15.0
"""Ray hands out the cores of a replica that has ended, which may be before its claim has gone."""


class NoCores(RuntimeError):
    """There are not as many free cores; the message has the remedy."""


class ReplicaCores:
    """`cores`, claimed until `close`, by names that go with the process."""

    def __init__(self, claims: Sequence[tuple[int, CoreClaims]]) -> None:
        self.cores = [core for core, _ in claims]
        self._claims = [claim for _, claim in claims]

    def close(self) -> None:
        """Give them back."""
        for claim in self._claims:
            claim.close()


async def claimed(count: int, usable: Sequence[int], wait_seconds: float = WAIT_SECONDS) -> ReplicaCores:
    """The first `count` of `usable` that are free, once there are so many. Raises NoCores."""
    ends = asyncio.get_running_loop().time() + wait_seconds
    while (found := _try(count, usable)) is None:
        if asyncio.get_running_loop().time() > ends:
            raise NoCores(
                f"{count} cores that no other replica has: there are not so many among {list(usable)}; tell "
                "Ray the cores that this node has (--num-cpus), or ask for fewer by --replica-cpus"
            )
        await asyncio.sleep(0.2)
    return found


def _try(count: int, usable: Sequence[int]) -> ReplicaCores | None:
    claims = list[tuple[int, CoreClaims]]()
    for core in usable:
        claim = CoreClaims([core], of="replica")
        if claim.held:
            claims.append((core, claim))
        else:
            claim.close()
        if len(claims) == count:
            return ReplicaCores(claims)
    ReplicaCores(claims).close()
    return None
