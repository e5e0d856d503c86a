"""A request that asks for it is sampled as it runs: how its steps split, and what becomes of lost samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from service.engine import request_samples
from service.engine.job_result import JobResult
from service.engine.job_runner import lead_of
from service.engine.local_inbox import local_job
from service.engine.request_samples import DRAIN_NS, RequestSamples
from service.protocol.messages import Job, Outcome
from service.step.meters import HostMeter, Meter, Readings
from service.step.native.perf_events import PerfError, Samples
from service.step.native.step_samples import StepSamples
from tests.engine.serving import PROMPT, serve

JOB = local_job("a", "eager", ["x"], 4, sample=True)
KERNEL, HOST = 1, 2


class Ring:
    """In place of an `AddressSampler`: holds one sample per nanosecond of `times_ns`, or has lost some."""

    def __init__(self, times_ns: list[int], loses: str = "") -> None:
        self.times_ns = times_ns
        self.loses = loses
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def drain(self) -> None:
        self.calls.append("drain")
        if self.loses == "drain":
            raise PerfError("lost")

    def stop(self, into: Samples) -> None:
        self.calls.append("stop")
        if self.loses == "stop":
            raise PerfError("lost")
        into.times_ns = np.array(self.times_ns, np.int64)
        into.addresses = np.array([KERNEL if at % 2 else HOST for at in self.times_ns], np.uint64)


class Sampler:
    def __init__(self, ring: Ring) -> None:
        self.addresses = ring


class Sides:
    """The address is the side."""

    def of(self, addresses: list[int]) -> np.ndarray:
        return np.array(addresses, np.int8)


@pytest.fixture(autouse=True)
def made_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_samples, "AddressSides", Sides)


def run(ring: Ring, steps: list[tuple[int, int]], error: Exception | None = None) -> JobResult:
    """A job with one prefill step and these decode steps, each (begin, length) in nanoseconds."""
    result = JobResult()

    def generate(meter: Meter) -> None:
        for number, (begin, length) in enumerate(steps):
            readings = result.decode if number else result.prefill
            readings.begin.append(begin)
            readings.call.append(length)
            meter.run(lambda *_: (torch.zeros(1), torch.zeros(1)), (), _Quiet(readings))  # type: ignore[arg-type]
        if error is not None:
            raise error

    RequestSamples(Sampler(ring)).run(result, HostMeter(), generate)  # type: ignore[arg-type]
    return result


class _Quiet(Readings):
    """Takes no reading of its own: the test has made them."""

    def __init__(self, made: Readings) -> None:
        super().__init__(begin=made.begin, call=made.call)
        self.begin, self.call = _Full(made.begin), _Full(made.call)


class _Full(list[int]):
    def append(self, value: int) -> None:
        return None


def test_samples_are_those_of_the_phases_own_steps() -> None:
    found = run(Ring(list(range(40))), [(0, 4), (10, 6), (20, 6)])
    assert found.prefill.samples == StepSamples(kernel=2, host=2, unnamed=0)
    assert found.decode.samples == StepSamples(kernel=6, host=6, unnamed=0)


@pytest.mark.parametrize("loses", ["stop", "drain"])
def test_a_request_whose_samples_were_lost_has_none_and_is_served_all_the_same(loses: str) -> None:
    found = run(Ring([1], loses), [(0, 4), (2 * DRAIN_NS, 6)])
    assert found.prefill.samples is found.decode.samples is None
    assert found.decode.steps == 1


def test_the_ring_is_emptied_between_steps_about_once_a_second() -> None:
    ring = Ring([])
    run(ring, [(n * DRAIN_NS // 4, 1) for n in range(13)])
    assert ring.calls == ["start", "drain", "drain", "stop"]


def test_what_a_step_raises_ends_the_sampling_and_passes_through() -> None:
    ring = Ring([0, 1])
    with pytest.raises(ValueError, match="of the step"):
        run(ring, [(0, 4)], ValueError("of the step"))
    assert ring.calls[-1] == "stop"


def test_nothing_is_sampled_unasked_or_where_it_cannot_be() -> None:
    assert RequestSamples(Sampler(Ring([]))).is_due(JOB)  # type: ignore[arg-type]
    assert not RequestSamples(Sampler(Ring([]))).is_due(local_job("a", "eager", ["x"], 4))  # type: ignore[arg-type]
    assert not RequestSamples(None).is_due(JOB)


def test_what_leads_a_sampled_job_is_its_prefill_and_nothing_that_a_client_sees() -> None:
    job = local_job("a", "eager", ["x"], 40, sample=True, stream=True, stop=["y"], min_tokens=3)
    lead = lead_of(job)
    assert (lead.prompts, lead.mode, lead.max_new_tokens) == (job.prompts, job.mode, 1)
    assert not lead.stream


class TestEngine:
    """With the real model; where the system forbids sampling, the engine says so and samples nothing."""

    def outcomes(self, folder: Path, **options: Any) -> tuple[list[Outcome], str | None]:
        jobs: list[Job] = [
            local_job("plain", "inference_mode", [PROMPT], 24, ignore_eos=True),
            local_job("sampled", "inference_mode", [PROMPT], 24, ignore_eos=True, sample=True),
        ]
        inbox = serve(folder, jobs, batch_sizes=[1], modes=["inference_mode"], **options)
        return inbox.outcomes, inbox.engine_status.no_request_samples

    @pytest.fixture
    def served(self, tmp_path: Path) -> Callable[..., tuple[list[Outcome], str | None]]:
        return lambda **options: self.outcomes(tmp_path, **options)
