"""Every replica of a node has cores of its own."""

from __future__ import annotations

import asyncio

import pytest

from service.replicas.cores import NoCores, ReplicaCores, claimed

CORES = [910, 911, 912]
"""No machine's: other tests run services meanwhile."""


def claim(count: int) -> ReplicaCores:
    return asyncio.run(claimed(count, CORES, wait_seconds=0.0))


def test_replicas_get_different_cores() -> None:
    first, second = claim(1), claim(2)
    try:
        assert (first.cores, second.cores) == ([910], [911, 912])
    finally:
        first.close()
        second.close()


def test_what_is_not_enough_is_given_back_and_refused_with_the_remedy() -> None:
    first = claim(2)
    try:
        with pytest.raises(NoCores, match="--replica-cpus"):
            claim(2)
        claim(1).close()
    finally:
        first.close()


def test_cores_that_are_given_back_in_time_are_waited_for() -> None:
    first = claim(3)

    async def given_back() -> ReplicaCores:
        asyncio.get_running_loop().call_later(0.05, first.close)
        return await claimed(3, CORES, wait_seconds=30.0)

    second = asyncio.run(given_back())
    assert second.cores == CORES
    second.close()
