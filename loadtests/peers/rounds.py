"""Interleaved rounds: each visits every contestant at every batch size once, in an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from loadtests.peers.contestants import Caller
from loadtests.peers.process import RivalError
from loadtests.peers.reference import ReferenceRow
from loadtests.peers.results import CallRow

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Listener(Generic[Row]):
    """What is told as rounds go: that one began or ended, each visit's row as it ends, who failed and why."""

    began: Callable[[int], None]
    ended: Callable[[int], None]
    keep: Callable[[Row], None]
    failed: Callable[[str, str], None]


def order(names: Sequence[str], batches: Sequence[int], seed: int, number: int) -> list[tuple[str, int]]:
    """The visits of round `number`, shuffled by `seed`."""
    visits = [(name, batch) for name in names for batch in batches]
    Random(f"peers/{seed}/{number}").shuffle(visits)
    return visits


def visit(caller: Caller, rows: Sequence[ReferenceRow], calls: int, number: int) -> CallRow:
    """One untimed call, which fetches code and weights into the caches, then `calls` timed ones.

    Every call's tokens are checked; the first difference is kept. Raises RivalError where a call fails.
    """
    warm = caller.call(rows)
    timed = [caller.call(rows) for _ in range(calls)]
    found = [called.difference for called in (warm, *timed) if called.difference is not None]
    return CallRow(
        round=number,
        contestant=caller.name,
        batch=len(rows),
        seconds=[called.seconds for called in timed],
        steps_seconds=_all([called.steps_seconds for called in timed]),
        latency_seconds=_all([called.latency_seconds for called in timed]),
        difference=found[0] if found else None,
    )


def _all(values: list[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return known if known and len(known) == len(values) else None


def warm_up(
    callers: Sequence[Caller],
    rows: Sequence[ReferenceRow],
    batches: Sequence[int],
    failed: Callable[[str, str], None],
) -> list[Caller]:
    """Call each contestant twice at each batch size, untimed; returns those that could.

    `failed` is told the name and the reason of the others.
    """
    able = []
    for caller in callers:
        try:
            for batch in batches:
                for _ in range(2):
                    caller.call(rows[:batch])
        except RivalError as error:
            failed(caller.name, str(error))
        else:
            able.append(caller)
    return able


def run_rounds(
    callers: Sequence[Caller],
    rows: Sequence[ReferenceRow],
    batches: Sequence[int],
    rounds: int,
    calls: int,
    seed: int,
    listener: Listener[CallRow],
) -> None:
    """Run `rounds` rounds over `callers`. A contestant that fails is left out from then on."""
    able = {caller.name: caller for caller in callers}
    for number in range(rounds):
        listener.began(number)
        for name, batch in order(sorted(able), batches, seed, number):
            if name not in able:
                continue
            try:
                listener.keep(visit(able[name], rows[:batch], calls, number))
            except RivalError as error:
                del able[name]
                listener.failed(name, f"from round {number} on: {error}")
        listener.ended(number)
