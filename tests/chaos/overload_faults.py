"""Ten times as many requests as can be served: those that are accepted wait no longer than the queue is."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from time import perf_counter

import httpx
import psutil

from loadtests.run.machine import off_cores
from tests.chaos.fault import Happened
from tests.chaos.honest import Answers, ask_in_turn, ratio_of, within_noise
from tests.chaos.victim import BODY, PATIENCE_SECONDS, Setup, Victim, victim

FACTOR = 10.0
SECONDS = 60.0
QUEUE = 16
ALONE = 40
LONG: dict[str, object] = {**BODY, "max_new_tokens": 64, "ignore_eos": True}
"""Long enough that ten times the capacity is a rate which the one who sends can keep."""


@dataclass(frozen=True, slots=True)
class Served:
    """One accepted request: when it was sent and answered, and what its service took, all in seconds."""

    sent: float
    answered: float
    service: float

    @property
    def latency(self) -> float:
        """All the time it took."""
        return self.answered - self.sent


@dataclass(slots=True)
class Flood:
    """What came of the requests. `amiss`: refusals without Retry-After, and what broke."""

    served: list[Served] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    amiss: Counter[str] = field(default_factory=Counter)

    def services_waited(self) -> list[float]:
        """Of each accepted request, its latency in services: means of those that ended while it was there.

        So a machine that is slower for a while changes both sides.
        """
        return [
            one.latency
            / fmean(other.service for other in self.served if one.sent < other.answered <= one.answered)
            for one in self.served
        ]


def p99(values: Sequence[float]) -> float:
    """The value of rank ⌈0.99 n⌉."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def overloaded(folder: Path) -> Happened:
    """Ten times the capacity for a minute, by a queue of 16; beside it a service that is left alone."""
    (beside := folder / "control").mkdir()
    with (
        victim(folder, Setup(environment={"LAUNCHBOUND_MAX_QUEUE": str(QUEUE)})) as service,
        victim(beside) as control,
    ):
        for one in (service, control):
            one.await_warm()
        with off_cores(psutil.Process(service.engine()).cpu_affinity()):
            before = _in_turn(service, control)
            flood = asyncio.run(flooded(service, FACTOR / median(before[0].seconds), SECONDS, LONG))
            service.at_rest()
            after = _in_turn(service, control)
        return _happened(before, flood, after)


def _in_turn(service: Victim, control: Victim) -> tuple[Answers, Answers]:
    own, other = ask_in_turn(ALONE, service.url, control.url, **LONG)
    return own, other


async def flooded(service: Victim, rate: float, seconds: float, body: dict[str, object]) -> Flood:
    """Send `rate` requests per second with that `body`, each when it is due, whatever became of others."""
    flood, tasks = Flood(), set[asyncio.Task[None]]()
    most = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    options = {"timeout": PATIENCE_SECONDS, "limits": most, "trust_env": False}
    async with httpx.AsyncClient(base_url=service.url, **options) as http:
        began = perf_counter()
        for number in range(round(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - perf_counter()))
            tasks.add(asyncio.create_task(_one(http, flood, body)))
        await asyncio.gather(*tasks)
    return flood


async def _one(http: httpx.AsyncClient, flood: Flood, body: dict[str, object]) -> None:
    began = perf_counter()
    try:
        answer = await http.post("/v1/modes/eager/generate", json=body)
    except httpx.TransportError as error:
        flood.amiss[type(error).__name__] += 1
        return
    answered = perf_counter()
    flood.statuses[answer.status_code] += 1
    if answer.status_code == 200:
        timings = answer.json()["timings"]
        service = timings["total_seconds"] - timings["queue_seconds"]
        flood.served.append(Served(began, answered, service))
    elif answer.status_code != 429:
        flood.amiss[f"status {answer.status_code}"] += 1
    elif int(answer.headers.get("retry-after", 0)) < 1:
        flood.amiss["429 without Retry-After"] += 1


def _happened(before: tuple[Answers, Answers], flood: Flood, after: tuple[Answers, Answers]) -> Happened:
    """Judged by the services of the very requests that were served meanwhile; one alone is said beside."""
    wrong = [*(text for one in (*before, *after) for text in one.amiss), *flood.amiss]
    ratio, waited = ratio_of(after, before), p99(flood.services_waited())
    latency, service = p99([one.latency for one in flood.served]), fmean(one.service for one in flood.served)
    good = waited <= QUEUE + 1 and flood.statuses[429] > 0 and not wrong and within_noise(ratio)
    words = (
        f"{flood.statuses[200]} accepted, {flood.statuses[429]} refused with 429; p99 {latency:.2f} s, "
        f"{waited:.1f} services of {service * 1e3:.0f} ms (bound {QUEUE + 1}; {before[0].median_ms:.0f} ms "
        f"alone); latency afterwards {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] of before, "
        f"against a service beside it"
        f"{'; ' + wrong[0] if wrong else ''}"
    )
    numbers = {
        "accepted": flood.statuses[200], "refused": flood.statuses[429], "p99_seconds": latency,
        "p99_services": waited, "service_seconds": service, "alone_seconds": median(before[0].seconds),
        "after_ratio": ratio.value, "after_ratio_low": ratio.low, "after_ratio_high": ratio.high,
    }  # fmt: skip
    return Happened(words, SECONDS, good, numbers)
