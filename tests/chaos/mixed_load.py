"""Every kind of request that the service knows, good and bad, by three clients at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic

import httpx

from tests.chaos.victim import BODY, PATIENCE_SECONDS
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
