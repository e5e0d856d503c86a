"""What the checks over HTTP measure of a service, on made-up answers."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

import pytest

from service.front.settings import Settings
from service.proof import over_http
from service.proof.rows import run_check
from service.records import SampleCounts
from tests.support.small_models import quiet

MODES = ["eager", "compiled"]


class MadeUpService:
    """In place of a `RunningService`: every request takes `latency`, every decode step a thousandth of it."""

    modes = MODES
    settings = Settings()

    def connection(self) -> MadeUpService:
        return self

    def __enter__(self) -> MadeUpService:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    def generate(self, mode: str, new_tokens: int = 32) -> dict[str, Any]:
        phases = {
            "prefill": {"wall_seconds": 4e-3, "steps": 1},
            "decode": {"wall_seconds": 31e-3, "steps": 31},
        }
        return {"latency_seconds": 0.04, **phases}

    def answer(self, mode: str) -> tuple[bytes, float]:
        return json.dumps({"timings": {"mode": mode}}).encode(), 0.04


def test_what_the_service_adds_is_its_latency_less_its_steps_beside_a_real_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(over_http, "ADDED_ROUNDS", 3)
    found = over_http.measure_added(MadeUpService(), quiet)  # type: ignore[arg-type]
    assert found["service"] == pytest.approx([5e-3] * 3)
    assert len(found["bare"]) == 3
    assert all(seconds > 0 for seconds in found["bare"])


class Sampling(MadeUpService):
    """Answers in which three quarters of a decode are kernel; prefill's samples are always of the traffic."""

    cpus = (1,)

    def __init__(
        self, samples_of: str = "request", no_samples: str | None = None, wall_seconds: float = 4.0
    ) -> None:
        self._wall_seconds = wall_seconds
        self._samples_of, self._no_samples = samples_of, no_samples
        self.asked: list[tuple[str, int, bool]] = []

    def get(self, path: str) -> tuple[int, bytes]:
        return 200, json.dumps({"engine": {"no_samples": self._no_samples}}).encode()

    def generate(self, mode: str, new_tokens: int = 32, sample: bool = False) -> dict[str, Any]:
        self.asked.append((mode, new_tokens, sample))
        own = self._samples_of if sample and new_tokens > 1 else "traffic"
        counts = {"kernel_samples": 1500, "host_samples": 500, "samples_of": own}
        phase = {"wall_seconds": self._wall_seconds, "kernel_seconds": 0.75 * self._wall_seconds, **counts}
        return {"prefill": {**phase, "samples_of": "traffic"}, "decode": phase}


class InProcess:
    """In place of `SampledRequests`: `kernel` of 100 samples."""

    kernel = 75

    def __init__(self, *_: object) -> None:
        """No step is built."""

    def run(self, mode: str, new_tokens: int, seconds: float) -> dict[str, SampleCounts]:
        counts = SampleCounts(kernel=self.kernel, host=100 - self.kernel)
        return {"prefill": counts, "decode": counts}


@pytest.mark.parametrize(("kernel", "verdict"), [(75, "pass"), (60, "fail")])
def test_what_a_service_answers_is_compared_with_what_is_sampled_here(
    kernel: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.proof.requests.SampledRequests", InProcess)
    monkeypatch.setattr(InProcess, "kernel", kernel)
    monkeypatch.setattr(over_http, "perf_counter", count().__next__)
    service = Sampling()
    rows = run_check("x", over_http.CHECKS["served-samples"], service, quiet)[0]
    assert {row.verdict for row in rows} == {verdict}
    assert [row.name.partition(": ")[2] for row in rows] == [
        f"{kind.name}, {mode}, {kind.phase}, batch 1" for kind in over_http.KINDS for mode in MODES
    ]
    assert {asked[1:] for asked in service.asked} == {(32, False), (1, True), (384, True)}


@pytest.mark.parametrize(
    ("service", "verdict", "why"),
    [
        (Sampling(no_samples="no compiler here"), "not measurable here", "no compiler here"),
        (
            Sampling(samples_of="traffic", wall_seconds=0.1),
            "not measurable here",
            "a request of 384 tokens in eager has too few samples",
        ),
        (
            Sampling(samples_of="traffic"),
            "fail",
            "broke: ValueError: eager answers the traffic's split with some 3988 samples of its own",
        ),
    ],
)
def test_where_a_service_has_no_samples_of_its_own_the_row_says_why(
    service: Sampling, verdict: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.proof.requests.SampledRequests", InProcess)
    monkeypatch.setattr(over_http, "SERVED_MODES", ("eager",))
    monkeypatch.setattr(over_http, "perf_counter", count().__next__)
    (row,) = run_check("x", over_http.CHECKS["served-samples"], service, quiet)[0]
    assert (row.verdict, row.note) == (verdict, why)


def test_an_engine_that_does_not_start_fails_the_check_instead_of_leaving_a_row_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(service: object, log: object) -> AbstractContextManager[object]:
        raise RuntimeError("the engine ended (until it is warm)")

    monkeypatch.setattr(over_http, "bare_engine", refuse)
    (row,) = run_check("parts", over_http.CHECKS["parts"], Sampling(), quiet)[0]
    assert (row.name, row.verdict) == ("parts", "fail")
    assert "the engine ended" in row.note
