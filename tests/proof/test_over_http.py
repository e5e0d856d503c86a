"""What the checks over HTTP measure of a service, on made-up answers, and of an engine without a front."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import count
from threading import Thread
from typing import Any

import pytest

from service.engine.inbox import Inbox
from service.front.settings import Settings
from service.proof import over_http
from service.proof.rows import run_check
from service.proof.running_service import BareEngine
from service.records import Doing, Outcome, PhaseTimings, SampleCounts, Timings
from tests.proof.samples import parts
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


def test_concurrency_is_measured_per_decode_step() -> None:
    found = over_http.measure_concurrency(MadeUpService(), quiet)  # type: ignore[arg-type]
    for users in (1, over_http.CONCURRENCY):
        assert found[users] == pytest.approx([1e-3] * over_http.CONCURRENCY_ROUNDS)


def test_what_the_service_adds_is_its_latency_less_its_steps_beside_a_real_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(over_http, "ADDED_ROUNDS", 3)
    found = over_http.measure_added(MadeUpService(), quiet)  # type: ignore[arg-type]
    assert found["service"] == pytest.approx([5e-3] * 3)
    assert len(found["bare"]) == 3
    assert all(seconds > 0 for seconds in found["bare"])


def test_equal_latencies_are_never_a_difference() -> None:
    found = over_http.measure_itself(MadeUpService(), quiet)["comparisons"]  # type: ignore[arg-type]
    assert [comparison.word for comparison in found] == ["no detectable difference"] * over_http.REPEATS


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
    rows = run_check("x", over_http.CHECKS["served-samples"], service, quiet)
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
    (row,) = run_check("x", over_http.CHECKS["served-samples"], service, quiet)
    assert (row.verdict, row.note) == (verdict, why)


# The parts of a request


class WithParts(MadeUpService):
    """In place of a `RunningService`: requests as `parts` has them, on a machine that gets slower."""

    modes = ("eager",)
    cpus = (1,)

    def __init__(self) -> None:
        self._timings = parts()["eager", "request"][0]
        self.requests = 0

    @property
    def slowness(self) -> float:
        return 1.0 if self.requests <= over_http.PARTS_UNCOUNTED + over_http.PARTS_REQUESTS // 2 else 1.5

    def generate(self, mode: str) -> dict[str, float | None]:
        self.requests += 1
        return {name: value and value * self.slowness for name, value in self._timings.items()}


class MadeUpEngine:
    """In place of a `BareEngine`: its jobs take 0.6 ms beside steps, times the slowness."""

    def __init__(self, service: WithParts) -> None:
        self._service = service
        self.jobs = 0

    def overhead_seconds(self, mode: str) -> float:
        self.jobs += 1
        assert abs(self.jobs - self._service.requests) <= 1, "not in turn with the requests"
        return 0.6e-3 * self._service.slowness


def test_parts_are_measured_in_turn_so_that_a_slower_machine_changes_both_sides_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = WithParts()

    monkeypatch.setattr(over_http, "bare_engine", lambda service, log: nullcontext(MadeUpEngine(service)))
    smallest, pieces = run_check("parts", over_http.CHECKS["parts"], service, quiet)
    assert (smallest.verdict, pieces.verdict, pieces.value) == ("pass", "pass", pytest.approx(1.0))


def test_an_engine_that_does_not_start_fails_the_check_instead_of_leaving_a_row_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(service: object, log: object) -> AbstractContextManager[MadeUpEngine]:
        raise RuntimeError("the engine ended (until it is warm)")

    monkeypatch.setattr(over_http, "bare_engine", refuse)

    (row,) = run_check("parts", over_http.CHECKS["parts"], WithParts(), quiet)
    assert (row.name, row.verdict) == ("parts", "fail")
    assert "the engine ended" in row.note


# An engine whose front is the selftest: what is taken of its answers, and how its end is told


def test_one_job_after_another_is_sent_and_what_else_arrives_is_passed_over() -> None:
    with closing(BareEngine()) as bare:
        inbox = Inbox(bare.address)

        def engine() -> None:
            for _ in range(2):
                while (job := inbox.take()) is None:
                    inbox.receive(50)
                inbox.announce(Doing(what="a job", limit_seconds=1.0))
                inbox.send(outcome(job.id, timings()))

        thread = Thread(target=engine, daemon=True)
        thread.start()
        bare.receive()  # accepts the connection
        assert [bare.overhead_seconds("eager") for _ in range(2)] == [pytest.approx(2e-3)] * 2
        thread.join()
        inbox.close()


def test_a_job_that_did_not_run_is_an_error_with_its_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(BareEngine()) as bare:
        monkeypatch.setattr(bare, "send", lambda job: None)
        monkeypatch.setattr(bare, "receive", lambda: [outcome("a", None)])
        with pytest.raises(RuntimeError, match="job a did not run"):
            bare.overhead_seconds("eager")


def test_an_engine_that_ends_meanwhile_is_an_error() -> None:
    with closing(BareEngine()) as bare:
        inbox = Inbox(bare.address)
        bare.receive()  # accepts the connection
        inbox.close()
        with pytest.raises(RuntimeError, match=r"the engine ended \(a job in eager\)"):
            bare.overhead_seconds("eager")


UNKNOWN = dict.fromkeys(("dispatch_seconds", "device_span_seconds", "kernel_seconds", "sync_wait_seconds"))


def timings() -> Timings:
    prefill, decode = (PhaseTimings(steps=1, wall_seconds=wall, **UNKNOWN) for wall in (2e-3, 5e-3))
    return Timings(
        queue_seconds=0.0, prefill=prefill, decode=decode, tokenise_seconds=1e-3, involuntary_switches=0,
        dispatch_source=None, kernel_source=None, taken_ns=0, first_token_ns=None, done_ns=10_000_000,
    )  # fmt: skip


def outcome(identity: str, measured: Timings | None) -> Outcome:
    return Outcome(
        id=identity, mode="eager", effective="eager", reason=None, kind="ok", batch_size=1, batch_bucket=1,
        timings=measured,
    )  # fmt: skip
