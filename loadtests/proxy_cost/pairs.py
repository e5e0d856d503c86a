"""The same request by a proxy and to its replica's own address, in turn, and the differences of the pairs.

One replica, reached both ways over connections that stay open: what the machine does meanwhile changes both
alike, and the difference of each pair counts.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from loadtests.run.environment import git_state
from loadtests.run.open_connection import OpenConnection
from loadtests.run.part import now
from loadtests.run.target import Target, TargetError
from service.statistics.intervals import as_json, median_interval

FORMAT_VERSION = 1
WARMUP_PAIRS = 20
PROMPT = "def mean(values):"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The same request both ways: as long as the client waited, and as long as the service says (total)."""

    direct_seconds: float
    direct_total_seconds: float
    proxy_seconds: float
    proxy_total_seconds: float

    @property
    def added_seconds(self) -> float:
        """What the client waited longer by way of the proxy."""
        return self.proxy_seconds - self.direct_seconds

    @property
    def added_outside_seconds(self) -> float:
        """The same without what the service took for either, which scatters by itself."""
        outside = self.proxy_seconds - self.proxy_total_seconds
        return outside - (self.direct_seconds - self.direct_total_seconds)


def measure(proxy: str, direct: str, pairs: int, mode: str, new_tokens: int) -> dict[str, Any]:
    """The document: every pair, and medians with their intervals. Raises TargetError."""
    key = os.environ.get("LAUNCHBOUND_API_KEY")
    served = _one_replica(Target(proxy, key), Target(direct, key))
    body = {"prompts": [PROMPT], "max_new_tokens": new_tokens, "ignore_eos": True}
    ways = OpenConnection(direct, body, mode, key), OpenConnection(proxy, body, mode, key)
    try:
        taken = [_pair(*ways) for _ in range(WARMUP_PAIRS + pairs)][WARMUP_PAIRS:]
    finally:
        for way in ways:
            way.close()
    if len(ways[1].replicas) > 1:
        raise TargetError(f"{proxy} had {len(ways[1].replicas)} replicas answer: serve with --replicas 1")
    return {
        "format_version": FORMAT_VERSION,
        "started": now(),
        "load_tests": git_state(),
        "service": served["service"],
        "engine": served["engine"],
        "request": {"mode": mode, **body},
        "proxy_url": proxy,
        "direct_url": direct,
        "warmup_pairs": WARMUP_PAIRS,
        "summary": summary(taken),
        "pairs": msgspec.to_builtins(taken),
    }


def _pair(direct: OpenConnection, proxy: OpenConnection) -> Pair:
    """Direct first, always: what one leaves in the caches is the same for every pair."""
    (straight, straight_answer), (by_proxy, proxy_answer) = direct.request(), proxy.request()
    return Pair(
        direct_seconds=straight,
        direct_total_seconds=straight_answer["timings"]["total_seconds"],
        proxy_seconds=by_proxy,
        proxy_total_seconds=proxy_answer["timings"]["total_seconds"],
    )


def summary(pairs: list[Pair]) -> dict[str, Any]:
    """Medians over the pairs. `added_share`: of what a request by the proxy takes."""
    proxy = median_interval([pair.proxy_seconds for pair in pairs])
    added = median_interval([pair.added_seconds for pair in pairs])
    return {
        "direct_seconds": as_json(median_interval([pair.direct_seconds for pair in pairs])),
        "proxy_seconds": as_json(proxy),
        "added_seconds": as_json(added),
        "added_outside_seconds": as_json(median_interval([pair.added_outside_seconds for pair in pairs])),
        "added_share": added.value / proxy.value,
    }


def _one_replica(proxy: Target, direct: Target) -> dict[str, Any]:
    """GET /v1/modes of the replica. Raises TargetError unless both addresses lead to the same engine."""
    if proxy.replica() is None:
        raise TargetError(
            f"{proxy.url} is no proxy of replicas: give the address that `serve --replicas` prints"
        )
    if direct.replica() is not None:
        raise TargetError(
            f"{direct.url} is a proxy too: give the replica's own address, from the targets file"
        )
    found = direct.modes()
    if found["engine"] is None or (proxy.modes()["engine"] or {}).get("pid") != found["engine"]["pid"]:
        raise TargetError(f"{proxy.url} and {direct.url} do not lead to one engine: serve with --replicas 1")
    return found
