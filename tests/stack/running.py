"""A short load on the real service, on a front with a fake GPU, and a client of Prometheus' HTTP API."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from loadtests.run.exporter import Exporter
from service.records import DeviceTime, KernelTime, ProfilerCost
from tests.support.serving import FRESH, Front

MODES = ("eager", "no_grad", "inference_mode", "compiled", "reduce-overhead")
BATCH_SIZES = (2,)


@dataclass(frozen=True, slots=True)
class Stack:
    """What ran: `before` and `after` are the service's page around the load.

    Every target had been scraped `at` this time; a later scrape may fail on a busy machine.
    """

    prometheus: Prometheus
    at: float
    service: str
    gpu: str
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
    body = {"prompts": ["def mean(values):"] * batch_size, "max_new_tokens": 8, "ignore_eos": True, **more}
    path = f"{url}/v1/modes/{mode}/generate"
    return httpx.post(path, json=body, timeout=30, trust_env=False).status_code


def drive(url: str, exporter: Exporter, rounds: int) -> None:
    """Visit every mode and batch size `rounds` times, per mode once profiled and once sampled, be refused."""
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


MODES_ON_A_GPU = ("eager", "reduce-overhead")
DECODE: dict[str, Any] = {
    "phase": "decode", "batch": 1, "row_tokens": 1, "attended_tokens": 64,
    "seconds": 95e-6, "low": 95e-6, "high": 95e-6, "samples": 8
}  # fmt: skip
MEASURED: dict[str, Any] = {
    "device_times": [DeviceTime(queued=16, upper_bound=False, **DECODE)],
    "kernel_times": [KernelTime(**DECODE)],
    "profiler_cost": ProfilerCost(
        ratio=1.04, low=1.02, high=1.06, rounds=8, before_seconds=60e-6, after_seconds=62.4e-6
    ),
}
"""What no fake engine measures at warm-up."""


def advance_gpu(front: Front) -> None:
    """Requests, profiled and as something else; a compilation, and an allocation that failed."""
    for mode in MODES_ON_A_GPU:
        assert front.generate(mode).status_code == 200
        assert front.command("!profiled", mode=mode).status_code == 200
    front.command("!fallback graph_skipped", mode="reduce-overhead")
    front.command("!compile reduce-overhead")
    front.command("!oom")
    tell_measured(front)


def restart_gpu(front: Front) -> None:
    front.command("!die")
    front.await_ready()
    tell_measured(front)


def tell_measured(front: Front) -> None:
    for mode in MODES_ON_A_GPU:
        front.state.metrics.mode(msgspec.structs.replace(front.state.client.modes[mode], **MEASURED))


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """One series of a query's result: its labels, and (seconds since the epoch, value) in order of time."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server and its HTTP API. A query that it refuses raises ValueError with its message."""

    url: str

    def query(self, expr: str, at: float | None = None) -> list[TimeSeries]:
        when = {} if at is None else {"time": at}
        found = self._get("query", query=expr, **when)["data"]["result"]
        return [TimeSeries(one["metric"], (_point(one["value"]),)) for one in found]

    def query_range(self, expr: str, start: float, end: float, step_seconds: float) -> list[TimeSeries]:
        found = self._get("query_range", query=expr, start=start, end=end, step=step_seconds)["data"]
        return [TimeSeries(one["metric"], tuple(map(_point, one["values"]))) for one in found["result"]]

    def exemplars(self, expr: str, start: float, end: float) -> list[tuple[dict[str, str], dict[str, Any]]]:
        """What the series in `expr` pointed to from `start` to `end`: a series' labels, and an exemplar."""
        found = self._get("query_exemplars", query=expr, start=start, end=end)["data"]
        return [(series["seriesLabels"], one) for series in found for one in series["exemplars"]]

    def health(self) -> dict[str, str]:
        """Scraped address "host:port" → "up" or the last error; undiscovered targets are missing."""
        targets = self._get("targets", state="active")["data"]["activeTargets"]
        return {
            one["discoveredLabels"]["__address__"]: "up"
            if one["health"] == "up"
            else one["lastError"] or "unknown"
            for one in targets
        }

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["data"]["groups"] for rule in group["rules"]]

    def _get(self, call: str, **parameters: Any) -> dict[str, Any]:
        # As a form: a long expression may exceed the length limit of an address.
        sent = {"data": parameters} if call.startswith("query") else {"params": parameters}
        method = "POST" if "data" in sent else "GET"
        answer = httpx.request(method, f"{self.url}/api/v1/{call}", timeout=20, trust_env=False, **sent)
        if answer.status_code != 200:
            raise ValueError(f"Prometheus does not answer {parameters.get('query', call)}: {answer.text}")
        found: dict[str, Any] = answer.json()
        return found


def _point(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
