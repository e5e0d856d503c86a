"""A request that asks for it is sampled as it runs: how its steps split, and what becomes of lost samples."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from service.engine import request_samples
from service.engine.generation import Generator
from service.engine.job_result import JobResult
from service.engine.job_runner import lead_of
from service.engine.local_inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.engine.request_samples import DRAIN_NS, RequestSamples
from service.protocol.messages import Job
from service.protocol.status import EngineStatus
from service.step.buffers import Arguments
from service.step.callables import Step
from service.step.meters import Meter, Readings
from service.step.native.perf_events import PerfError, Samples
from service.step.native.step_samples import StepSamples
from tests.engine.serving import PROMPT, settings

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


class MadeMeter:
    """Reads of each step that it begins and takes what a test says, (begin, length) in nanoseconds."""

    def __init__(self, steps: list[tuple[int, int]]) -> None:
        self._steps = iter(steps)

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[Tensor, Tensor]:
        begin, length = next(self._steps)
        readings.begin.append(begin)
        readings.call.append(length)
        return torch.zeros(1), torch.zeros(1)

    def fetch(self, tokens: Tensor, readings: Readings) -> list[int]:
        return []


def nothing(*_: object) -> tuple[Tensor, Tensor]:
    raise AssertionError("the made meter calls no step")


def run(ring: Ring, steps: list[tuple[int, int]], error: Exception | None = None) -> JobResult:
    """A job with one prefill step and then decode steps."""
    result = JobResult()

    def generate(meter: Meter) -> None:
        for number in range(len(steps)):
            meter.run(nothing, (), result.decode if number else result.prefill)  # type: ignore[arg-type]
        if error is not None:
            raise error

    RequestSamples(Sampler(ring)).run(result, MadeMeter(steps), generate)  # type: ignore[arg-type]
    return result


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


@pytest.mark.usefixtures("restored_globals")
def test_an_engine_samples_the_requests_that_ask_for_it_and_says_where_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # real addresses
    statuses: list[EngineStatus] = []
    jobs = [
        local_job(name, "inference_mode", [PROMPT], 24, ignore_eos=True, sample=name == "sampled")
        for name in ("plain", "sampled")
    ]
    inbox = LocalInbox(jobs, lambda message: statuses.append(message) if is_status(message) else None)
    generated: list[tuple[int, int, int]] = []
    run = Generator.run

    def noted(self: Generator, job: Job, *rest: Any) -> None:
        began_ns = perf_counter_ns()
        run(self, job, *rest)
        generated.append((job.max_new_tokens, began_ns, perf_counter_ns()))

    monkeypatch.setattr(Generator, "run", noted)
    Engine(settings(tmp_path, batch_sizes=[1], modes=["inference_mode"]), inbox).run()
    plain, sampled = (outcome.timings for outcome in inbox.outcomes)
    assert plain is not None
    assert sampled is not None
    assert plain.decode.kernel_samples is None
    assert [o.outputs[0].token_ids for o in inbox.outcomes[:1]] == [
        o.outputs[0].token_ids for o in inbox.outcomes[1:]
    ]
    if statuses[-1].no_request_samples is not None:
        assert "perf_event" in statuses[-1].no_request_samples
        assert sampled.decode.kernel_samples is None
        return
    # Its lead, an unsampled prefill of its own, is a wait, and in none of its parts.
    began_ns, ended_ns = [span for tokens, *span in generated if tokens == 1][-1]
    assert sampled.queue_seconds >= (ended_ns - began_ns) / 1e9
    assert sampled.taken_ns >= ended_ns
    counts = sampled.decode.kernel_samples, sampled.decode.host_samples
    assert counts[0] is not None
    assert counts[1] is not None
    assert sampled.dispatch_source == "sampled"
    assert sampled.decode.dispatch_seconds == pytest.approx(
        sampled.decode.wall_seconds * counts[1] / sum(counts)  # type: ignore[operator, arg-type]
    )


@pytest.mark.usefixtures("restored_globals")
def test_an_engine_without_instrumentation_samples_nothing_and_says_so(tmp_path: Path) -> None:
    statuses: list[EngineStatus] = []
    inbox = LocalInbox([], lambda message: statuses.append(message) if is_status(message) else None)
    changed = settings(tmp_path, batch_sizes=[1], modes=["inference_mode"], instrumentation="off")
    Engine(changed, inbox).run()
    assert "LAUNCHBOUND_INSTRUMENTATION" in (statuses[-1].no_request_samples or "")


def is_status(message: object) -> bool:
    return isinstance(message, EngineStatus)
