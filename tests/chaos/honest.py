"""An honest client: one request after the other, each as it must be answered; and whether it took longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import httpx

from service.statistics.intervals import Interval, unpaired_ratio
from tests.chaos.victim import BODY, PATIENCE_SECONDS

MOST_SLOWER = 1.05
"""What counts as noise even where more requests would tell it from none."""


@dataclass(slots=True)
class Answers:
    """What came of requests: latencies in seconds, and every status or output that is not as it must be.

    `refused` counts the answers 429, after which the same is asked again when that said.
    """

    seconds: list[float] = field(default_factory=list)
    amiss: list[str] = field(default_factory=list)
    refused: int = 0

    @property
    def median_ms(self) -> float:
        """Of the latencies."""
        return median(self.seconds) * 1e3


def ask_while(going: Callable[[int], bool], url: str, outputs: object = None, **body: object) -> Answers:
    """Generate as long as `going`, which is given the count so far; all outputs must be `outputs`."""
    found = Answers()
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
        while going(len(found.seconds)):
            began = perf_counter()
            answer = http.post("/v1/modes/eager/generate", json={**BODY, **body})
            if answer.status_code == 429:
                found.refused += 1
                threading.Event().wait(float(answer.headers["retry-after"]))
                continue
            found.seconds.append(perf_counter() - began)
            if answer.status_code != 200:
                found.amiss.append(f"{answer.status_code}: {answer.text[:100]}")
            elif outputs is not None and answer.json()["outputs"] != outputs:
                found.amiss.append("another output")
    return found


def ask(count: int, url: str, **body: object) -> Answers:
    """`count` requests."""
    return ask_while(lambda done: done < count, url, **body)


def ask_in_turn(count: int, *urls: str, **body: object) -> list[Answers]:
    """`count` requests to each of `urls`, one after the other."""
    every = [Answers() for _ in urls]
    for _ in range(count):
        for found, url in zip(every, urls, strict=True):
            one = ask(1, url, **body)
            found.seconds += one.seconds
            found.amiss += one.amiss
            found.refused += one.refused
    return every


def within_noise(ratio: Interval) -> bool:
    """Whether latencies whose `ratio` this is are the same, as far as can be told."""
    return ratio.low <= 1.0 or ratio.value <= MOST_SLOWER


def ratio_of(after: tuple[Answers, Answers], before: tuple[Answers, Answers]) -> Interval:
    """Latency after over latency before, each over that of a control: the second, answered in turn with it.

    A machine that became slower meanwhile is slower for both.
    """
    return unpaired_ratio(*(_over_control(*pair) for pair in (after, before)))


def _over_control(own: Answers, control: Answers) -> list[float]:
    return [one / other for one, other in zip(own.seconds, control.seconds, strict=True)]
