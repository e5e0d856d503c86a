"""Overload, and a mixed load for a long time."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from time import monotonic, perf_counter

import httpx
import psutil

from loadtests.run.machine import off_cores
from tests.chaos.client_faults import Answers, ask_in_turn, ratio_of, within_noise
from tests.chaos.victim import BODY, PATIENCE_SECONDS, Experiment, Happened, Setup, Victim, victim
from tests.front.test_bad_input import FLOODS

FACTOR = 10.0
OVERLOAD_SECONDS = 60.0
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
            before = ask_in_turn(ALONE, service.url, control.url, **LONG)
            flood = asyncio.run(flooded(service, FACTOR / median(before[0].seconds), OVERLOAD_SECONDS, LONG))
            service.at_rest()
            after = ask_in_turn(ALONE, service.url, control.url, **LONG)
        return _overload(before, flood, after)


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


def _overload(before: tuple[Answers, Answers], flood: Flood, after: tuple[Answers, Answers]) -> Happened:
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
    return Happened(words, OVERLOAD_SECONDS, good, numbers)


CLIENTS = 3
PROMPT = "def mean(values):"


def burst(url: str, seconds: float, seed: int, rows: int) -> None:
    """Three clients for `seconds`, each in a random order of its own, with batches of up to `rows`.

    Their connections end with it.
    """
    end = monotonic() + seconds
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(_client, url, end, seed * CLIENTS + one, rows) for one in range(CLIENTS)]
        for client in clients:
            client.result()


def _client(url: str, end: float, seed: int, rows: int) -> None:
    chance = random.Random(seed)
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as http:
        while monotonic() < end:
            chance.choices(ACTIONS, WEIGHTS)[0](http, chance, rows)


def _generate(http: httpx.Client, chance: random.Random, rows: int) -> None:
    """Any batch, length and sampling, as an answer or as a stream; now and then profiled."""
    body = {
        "prompts": [PROMPT] * chance.randint(1, rows),
        "max_new_tokens": chance.randint(1, 40),
        "temperature": chance.choice([0.0, 0.8]),
        "seed": chance.randrange(1000),
        "stream": chance.random() < 0.3,
        "profile": chance.random() < 0.02,
    }
    _expect(http.post(f"/v1/modes/{chance.choice(['eager', 'inference_mode'])}/generate", json=body), 200)


def _compare(http: httpx.Client, chance: random.Random, rows: int) -> None:
    body = {**BODY, "repeats": chance.randint(1, 3)}
    _expect(http.post("/v1/compare", json=body), 200)


def _complete(http: httpx.Client, chance: random.Random, rows: int) -> None:
    body = {"model": "tiny:eager", "prompt": "import", "max_tokens": 8, "stream": chance.random() < 0.5}
    _expect(http.post("/v1/completions", json=body), 200)


def _look(http: httpx.Client, chance: random.Random, rows: int) -> None:
    path = chance.choice(["/metrics", "/v1/modes", "/v1/traces", "/health/ready", "/openapi.json", "/docs"])
    _expect(http.get(path), 200)


def _nonsense(http: httpx.Client, chance: random.Random, rows: int) -> None:
    path, body, _ = chance.choice(list(FLOODS.values()))
    _expect(http.post(path, content=body, headers={"Content-Type": "application/json"}), 422)
    _expect(http.get("/v1/traces/none"), 404)


def _vanish(http: httpx.Client, chance: random.Random, rows: int) -> None:
    body = {**BODY, "max_new_tokens": 400, "ignore_eos": True}
    with suppress(httpx.ReadTimeout):
        http.post("/v1/modes/eager/generate", json=body, timeout=httpx.Timeout(5.0, read=0.05))


def _expect(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, f"{answer.request.url}: {answer.status_code}, {answer.text[:200]}"


Action = Callable[[httpx.Client, random.Random, int], None]
ACTIONS: tuple[Action, ...] = (_generate, _compare, _complete, _look, _nonsense, _vanish)
WEIGHTS = (60, 5, 10, 15, 5, 5)


SETTLE_SECONDS = 300.0
LONG_SECONDS = 900.0
"""From here on it is long enough to judge resident memory; below, SETTLE_SECONDS would be most of it."""

BURST_SECONDS, REST_SECONDS = 10.0, 1.0
MOST_GROWTH = 1.01
LEAST_SAMPLES = 6
ROWS = 4
SETUP = Setup(batch_sizes=f"1,{ROWS}")


@dataclass(frozen=True, slots=True)
class Sample:
    """What is held at rest, by name, `at` so many seconds."""

    at: float
    resident: dict[str, float]
    counts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`growth` of resident memory by process, as a ratio; `grown`: the counts that are not flat."""

    growth: dict[str, float]
    grown: dict[str, tuple[float, float]]


def soaked(seconds: float) -> Experiment:
    """Mixed load for `seconds`, in bursts with a look at rest behind each."""

    def run(folder: Path) -> Happened:
        settle = min(SETTLE_SECONDS, seconds / 4)
        samples = list[Sample]()
        with victim(folder, SETUP) as service:
            service.await_warm()
            engine, number, began = service.engine(), 0, monotonic()
            while monotonic() - began < seconds:
                burst(service.url, min(BURST_SECONDS, seconds / 12), number, rows=ROWS)
                samples.append(sample(service, monotonic() - began))
                number += 1
            same = service.engine() == engine
        found = judge(samples, settle)
        return _happened(found, seconds, settle, same)

    return run


def judge(samples: list[Sample], settle: float) -> Verdict:
    """The last third of the samples after `settle` seconds against the first third of them.

    Resident memory by medians; of a count, the most that was seen in either. Raises ValueError for too few.
    """
    kept = [one for one in samples if one.at >= settle]
    if len(kept) < LEAST_SAMPLES:
        raise ValueError(f"{len(kept)} samples after {settle:g} s: soak for longer")
    third = len(kept) // 3
    first, last = kept[:third], kept[-third:]
    growth = {
        name: median(one.resident[name] for one in last) / median(one.resident[name] for one in first)
        for name in first[0].resident
    }
    most = {
        name: (max(one.counts[name] for one in first), max(one.counts[name] for one in last))
        for name in first[0].counts
    }
    return Verdict(growth, {name: ends for name, ends in most.items() if ends[1] > ends[0]})


def _happened(found: Verdict, seconds: float, settle: float, same_engine: bool) -> Happened:
    judged = seconds >= LONG_SECONDS
    small = all(ratio <= MOST_GROWTH for ratio in found.growth.values())
    good = same_engine and not found.grown and (small or not judged)
    grown = ", ".join(f"{name} {before:g} → {now:g}" for name, (before, now) in found.grown.items())
    resident = ", ".join(f"{name} {(ratio - 1) * 100:+.2f} %" for name, ratio in found.growth.items())
    words = (
        f"resident memory {resident} after the first {settle:.0f} s"
        f"{'' if judged else f' (told, not judged, below {LONG_SECONDS:.0f} s)'}; "
        f"{grown or 'descriptors, threads and series flat'}{'' if same_engine else '; another engine'}"
    )
    return Happened(words, seconds, good, {f"resident_{name}": ratio for name, ratio in found.growth.items()})


def sample(service: Victim, at: float) -> Sample:
    """What front and engine hold once nothing runs."""
    service.at_rest()
    threading.Event().wait(REST_SECONDS)  # connections are closed by both sides
    pids = {"front": service.process.pid, "engine": service.engine()}
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    counts = {"series": float(len(service.series()))}
    for name, process in processes.items():
        counts |= {f"descriptors of {name}": process.num_fds(), f"threads of {name}": process.num_threads()}
    return Sample(at, {name: process.memory_info().rss for name, process in processes.items()}, counts)
