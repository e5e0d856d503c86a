"""Clients of every bad kind at once, while an honest one goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import psutil

from tests.chaos.crowd import Crowd
from tests.chaos.fault import Happened, seconds_until
from tests.chaos.honest import ask, ask_while
from tests.chaos.victim import Victim, victim
from tests.support.processes import descendants

SECONDS, EACH = 45.0, 40
"""Longer than the longest deadline of a connection (30 s); 320 clients at a time."""

BEFORE = 30
TIMED = ("silent", "slow_head", "slow_body", "slow_large_body", "half_open", "unread")
"""The kinds that the service has to end."""


def crowded(folder: Path) -> Happened:
    """Hundreds of bad clients for a while."""
    with victim(folder) as service:
        service.await_warm()
        return among(service, EACH, SECONDS, BEFORE)


def among(service: Victim, each: int, seconds: float, alone: int) -> Happened:
    """What an honest client finds beside `each` clients of every bad kind, and what is left of these.

    It sends `alone` requests before them and after them.
    """
    engine, front = service.engine(), psutil.Process(service.process.pid)
    tokens = service.generate().json()["outputs"]
    before = ask(alone, service.url)
    service.at_rest()
    descriptors = front.num_fds()
    crowd, began = Crowd(service.url, each, seconds), monotonic()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(crowd.run)
        beside = ask_while(lambda _: not running.done(), service.url, tokens)
        running.result()
    left = seconds_until(lambda: front.num_fds() <= descriptors, "the end of their connections")
    after = ask(alone, service.url, outputs=tokens)
    wrong = [*before.amiss, *beside.amiss, *after.amiss]
    wrong += [f"no {kind} was ended" for kind in TIMED if not crowd.ended[kind]]
    if crowd.failed:
        wrong.append(f"refused: {dict(crowd.failed)}")
    if service.engine() != engine or engine not in descendants(front.pid):
        wrong.append("another engine")
    words = (
        f"{crowd.size} at a time, {crowd.ended.total()} ended; {len(beside.seconds)} honest requests "
        f"{'all as before' if not wrong else wrong[0]} ({beside.refused} told to come back), "
        f"median {before.median_ms:.0f} ms before, {beside.median_ms:.0f} beside, {after.median_ms:.0f} "
        f"after; connections gone {left:.1f} s later"
    )
    numbers = {"before_ms": before.median_ms, "beside_ms": beside.median_ms, "after_ms": after.median_ms}
    return Happened(words, monotonic() - began, not wrong, numbers)
