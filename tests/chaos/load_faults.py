"""A mixed load for a long time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic

import httpx
import psutil

from tests.chaos.victim import BODY, PATIENCE_SECONDS, Experiment, Happened, Setup, Victim, victim
from tests.front.test_bad_input import FLOODS

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
    return Happened(words, seconds, good)


def sample(service: Victim, at: float) -> Sample:
    service.at_rest()
    threading.Event().wait(REST_SECONDS)  # connections are closed by both sides
    pids = {"front": service.process.pid, "engine": service.engine()}
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    counts = {"series": float(len(service.series()))}
    for name, process in processes.items():
        counts |= {f"descriptors of {name}": process.num_fds(), f"threads of {name}": process.num_threads()}
    return Sample(at, {name: process.memory_info().rss for name, process in processes.items()}, counts)
