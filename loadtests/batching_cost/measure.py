"""Measure one service that merges, or two that differ in batching alone, and write down what was found."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from loadtests.batching_cost.rounds import Round, load_found, one_round, summary
from loadtests.run.environment import git_state
from loadtests.run.open_connection import OpenConnection
from loadtests.run.part import now
from loadtests.run.target import Target, TargetError, linear_layout

FORMAT_VERSION = 5
RESULT_FILE = "batching_cost-{mode}.json"

PROMPT = "def mean(values):"
_ALIKE = ("model_hash", "dtype", "threads", "batch_buckets")

CONNECTIONS = 16
"""Requests at once; below saturation a few are enough."""


def measure(
    off: str,
    batched: str,
    mode: str,
    load: float,
    rounds: int,
    requests: int,
    new_tokens: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """The document: every latency, and what batching costs (`summary`). Raises TargetError.

    Where `off` and `batched` are one address, *off* are requests that its service is told to run alone.
    `load` is the share of what `off` could serve one after the other: a round's rate times the latency of
    a request alone. `load_found` is the same by the requests that met nobody in the rounds, None without any.
    """
    key = os.environ.get("LAUNCHBOUND_API_KEY")
    targets = Target(off, key), Target(batched, key)
    served = _served(*targets)
    body = {"prompts": [PROMPT], "max_new_tokens": new_tokens, "ignore_eos": True}
    bodies = ({**body, "alone": True} if targets[0].url == targets[1].url else body, body)
    ways = [
        [OpenConnection(url, sent, mode, key) for _ in range(CONNECTIONS)]
        for url, sent in zip((off, batched), bodies, strict=True)
    ]
    try:
        taken = list[Round]()
        for number in range(rounds):
            taken.append(one_round(ways, load, requests, number))
            if number == 0:
                tell(f"{mode}: {1e3 * taken[0].alone_seconds:.1f} ms alone, {taken[0].rate:.1f} requests/s")
    finally:
        for way in ways:
            for connection in way:
                connection.close()
    return {
        "format_version": FORMAT_VERSION,
        "started": now(),
        "load_tests": git_state(),
        **served,
        "request": {"mode": mode, **body},
        "load": load,
        "load_found": load_found(taken),
        "summary": summary(taken),
        "rounds": msgspec.to_builtins(taken),
    }


def _served(off: Target, batched: Target) -> dict[str, Any]:
    """What both serve. Raises TargetError unless the second merges requests and, where they are two, only
    that one does and all else is equal.
    """
    engines = [target.modes()["engine"] or {} for target in (off, batched)]
    if off.url != batched.url and engines[0].get("batching") != "off":
        raise TargetError(
            f"{off.url} merges requests: name it alone, or one that is served with --batching off first"
        )
    if engines[1].get("batching") in (None, "off"):
        raise TargetError(f"{batched.url} does not merge requests: serve it with --batching continuous")
    alike = [
        *((field, [one.get(field) for one in engines]) for field in _ALIKE),
        ("linears", [linear_layout(one) for one in engines]),
    ]
    for field, (one, other) in alike:
        if one != other:
            raise TargetError(
                f"{off.url} and {batched.url} differ in more than batching: {field} {one} and {other}"
            )
    return {
        "off": {"url": off.url, "engine": engines[0]},
        "batched": {"url": batched.url, "engine": engines[1]},
    }
