"""A short load on the real service."""

from __future__ import annotations

import time
from dataclasses import dataclass

import httpx

from loadtests.run.exporter import Exporter
from tests.stack.prometheus import Prometheus
from tests.support.serving import FRESH

MODES = ("eager", "no_grad", "inference_mode", "compiled", "reduce-overhead")
BATCH_SIZES = (2,)


@dataclass(frozen=True, slots=True)
class Stack:
    """What ran: `served` requests answered with 200, `before` and `after` the service's page around them.

    Every target had been scraped `at` this time; a later scrape may fail on a busy machine.
    """

    prometheus: Prometheus
    at: float
    service: str
    gpu: str
    served: int
    before: str
    after: str


def get(url: str) -> tuple[int, str]:
    """Status and body, status 0 where nothing answers.

    A redirect is not followed, because Prometheus' own scrape may not be either.
    """
    try:
        answer = httpx.get(url, headers=FRESH, timeout=10, trust_env=False)
    except httpx.TransportError as error:
        return 0, str(error)
    return answer.status_code, answer.text


def generate(url: str, mode: str, batch_size: int, **more: object) -> int:
    """One request; returns its status."""
    body = {"prompts": ["def mean(values):"] * batch_size, "max_new_tokens": 8, "ignore_eos": True, **more}
    path = f"{url}/v1/modes/{mode}/generate"
    return httpx.post(path, json=body, timeout=30, trust_env=False).status_code


def drive(url: str, exporter: Exporter, rounds: int) -> int:
    """Visit every mode and batch size `rounds` times, per mode once profiled and once sampled, be refused.

    Returns how many were served.
    """
    exporter.users.set(1)
    for _ in range(rounds):
        for mode in MODES:
            for batch_size in BATCH_SIZES:
                began = time.perf_counter()
                assert generate(url, mode, batch_size) == 200
                exporter.observe(mode, batch_size, time.perf_counter() - began, "ok")
            for examined in ("profile", "sample"):
                assert generate(url, mode, 1, **{examined: True}) == 200
    assert generate(url, "no_such_mode", 1) == 404
    assert generate(url, "eager", 0) == 422
    return rounds * len(MODES) * (len(BATCH_SIZES) + 2)
