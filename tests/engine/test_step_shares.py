"""Samples of the engine's thread: which step they count for, what its split rests on, and which a job has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from service.engine import step_shares
from service.engine.generation import Generator
from service.engine.inbox import LocalInbox, local_job
from service.engine.job import JobResult
from service.engine.job_runner import JobRunner
from service.engine.loop import Engine
from service.engine.profiler import RequestProfiler
from service.engine.step_shares import BACKGROUND_PER_SECOND, ENOUGH, NEWEST, StepShares
from service.engine.warmup import ConfiguredMode, Warmup
from service.measure.cpu_sampler import SAMPLES_PER_SECOND, Place, SamplerError
from service.modes import MODES
from service.records import (
    PHASES,
    EngineStatus,
    Job,
    ModeStatus,
    Phase,
    SampleCounts,
    Side,
    StepSplit,
    ToFront,
)
from service.step import meters
from service.step.callables import Step
from service.step.meters import HostMeter, Meter, Readings
from tests.engine.serving import PROMPT, settings


def arguments(tokens: int = 1, positions: int = 64) -> Any:
    """Of a step over so many tokens per row, which attends to so many positions."""
    cache = torch.zeros(1, positions, 1, 1)
    return torch.zeros(1, tokens, dtype=torch.int64), None, None, ((cache, cache),)


ARGUMENTS = arguments()


class FakeSampler:
    """As CpuSampler, on a thread that is seen where a test says, and by signals that come when it says so."""

    def __init__(self) -> None:
        self.label = ctypes.c_int64()
        self.lost = False
        self.rates: list[float] = []
        self.running = False
        self._samples: list[tuple[int, Place]] = []
        self._taken = 0

    @property
    def count(self) -> int:
        return self._taken + len(self._samples)

    def start(self, samples_per_second: float) -> None:
        self.rates.append(samples_per_second)
        self.running = True

    def stop(self) -> None:
        self.running = False

    def take(self) -> list[tuple[int, Place]]:
        taken, self._samples = self._samples, []
        self._taken += len(taken)
        return taken

    def see(self, side: Side, times: int = 1) -> None:
        """Signals come; they leave samples where the sampler is started, and the thread in a step."""
        if self.running and self.label.value:
            self._samples += [(self.label.value, Place(side, "function", "library"))] * times


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> FakeSampler:
    fake = FakeSampler()
    monkeypatch.setattr(step_shares, "CpuSampler", lambda *_: fake)
    return fake


@pytest.fixture
def shares(sampler: FakeSampler) -> StepShares:
    return StepShares(Path())


def seen_in(sampler: FakeSampler, **sides: int) -> Step:
    """A step in which the thread is seen so often on each side."""

    def step(*_: object) -> tuple[Tensor, Tensor]:
        for side, times in sides.items():
            sampler.see(cast(Side, side), times)
        return torch.zeros(1), torch.zeros(1, dtype=torch.int64)

    return step


def one_step(shares: StepShares, step: Step) -> Callable[[], object]:
    """Have `step` be the decode of batch 1 in eager; what is returned calls it, as for a request."""
    shares.add("eager", {("decode", 1): step})
    meter = HostMeter(shares.labels)
    return lambda: meter.run(step, ARGUMENTS, Readings())


def only_split(shares: StepShares) -> StepSplit:
    (split,) = shares.splits("eager")
    return split


def test_samples_count_for_the_mode_phase_and_bucket_whose_step_ran(
    shares: StepShares, sampler: FakeSampler
) -> None:
    keys = [(mode, phase, bucket) for mode in ("eager", "no_grad") for phase in PHASES for bucket in (1, 4)]
    expected = {key: SampleCounts(kernel=n + 1, host=2 * n + 1, system=n) for n, key in enumerate(keys)}
    steps = {
        key: seen_in(sampler, kernel=counts.kernel, host=counts.host, system=counts.system)
        for key, counts in expected.items()
    }
    for name in ("eager", "no_grad"):
        shares.add(name, {(phase, bucket): steps[name, phase, bucket] for _, phase, bucket in keys[:4]})
    meter = HostMeter(shares.labels)
    with shares.sampling() as found:
        for key in reversed(keys):
            meter.run(steps[key], ARGUMENTS, Readings())
    assert found == expected
    assert {key: shares.newest(*key) for key in keys} == expected
    for name in ("eager", "no_grad"):
        splits = {(name, split.phase, split.batch): split.all for split in shares.splits(name)}
        assert splits == {key: counts for key, counts in expected.items() if key[0] == name}


def test_a_step_of_another_size_has_its_own_samples_where_they_are_enough(
    shares: StepShares, sampler: FakeSampler
) -> None:
    long, short = (seen_in(sampler, kernel=kernel, host=1) for kernel in (3, 1))
    sides = {"now": long}
    shares.add("eager", {("prefill", 1): (step := lambda *given: sides["now"](*given))})
    meter = HostMeter(shares.labels)
    with shares.sampling() as found:
        for sides["now"], tokens, times in ((long, 64, 100), (short, 16, ENOUGH // 2), (short, 32, 2)):
            for _ in range(times):
                meter.run(step, arguments(tokens), Readings())
    of_all = SampleCounts(kernel=300 + ENOUGH // 2 + 2, host=102 + ENOUGH // 2)
    assert found == {("eager", "prefill", 1): of_all}
    of_size = {size: shares.newest("eager", "prefill", 1, size) for size in (64, 16, 32, 8)}
    assert of_size[64] == SampleCounts(kernel=300, host=100)
    assert of_size[16] == SampleCounts(kernel=ENOUGH // 2, host=ENOUGH // 2)
    assert of_size[32] == of_size[8] == shares.newest("eager", "prefill", 1) == of_all


def test_a_step_that_raises_is_left_and_its_samples_count(shares: StepShares, sampler: FakeSampler) -> None:
    def failing(*_: object) -> tuple[Tensor, Tensor]:
        sampler.see("host", 3)
        raise ValueError("of the step")

    run = one_step(shares, failing)
    with pytest.raises(ValueError, match="of the step"), shares.sampling():
        run()
    shares.rest()
    with pytest.raises(ValueError, match="of the step"):
        shares.labels.call(failing, ARGUMENTS)
    assert sampler.label.value == 0
    assert not sampler.running
    assert shares.newest("eager", "decode", 1) == SampleCounts(host=3)


@pytest.mark.parametrize("block", [1, 30, 130, 5000])
def test_the_split_follows_the_newest_samples_and_all_are_kept_in_number(
    sampler: FakeSampler, shares: StepShares, block: int
) -> None:
    sides: list[Side] = ["kernel"]

    def step(*_: object) -> tuple[Tensor, Tensor]:
        sampler.see(sides[0], block)
        return torch.zeros(1), torch.zeros(1)

    run = one_step(shares, step)
    total = 0
    for side, share in (("kernel", 0.0), ("host", 1.0)):
        sides[0] = cast(Side, side)
        for _ in range(2 * NEWEST // block + 2):
            with shares.sampling():
                run()
            shares.collect()
            total += block
            split = only_split(shares)
            assert split.all.total == total
            assert min(total, NEWEST) <= split.newest.total < NEWEST + NEWEST // 20 + 2 * block
        assert split.dispatch_share == share


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The instant that the meters read."""
    now = [0]
    monkeypatch.setattr(meters, "perf_counter_ns", lambda: now[0])
    return now


def lasting(sampler: FakeSampler, clock: list[int], nanoseconds: Sequence[int]) -> Step:
    """A step that takes so long, one time after another."""
    left = iter(nanoseconds)

    def step(*_: object) -> tuple[Tensor, Tensor]:
        sampler.see("kernel")
        clock[0] += next(left)
        return torch.zeros(1), torch.zeros(1)

    return step


def test_faster_sampling_gives_a_step_its_time_only_where_no_other_has(
    shares: StepShares, sampler: FakeSampler, clock: list[int]
) -> None:
    run = one_step(shares, lasting(sampler, clock, [400, 200, 800]))
    found = []
    for rate in (SAMPLES_PER_SECOND, BACKGROUND_PER_SECOND, SAMPLES_PER_SECOND):
        with shares.sampling(rate):
            run()
        shares.collect()
        found.append(only_split(shares).step_seconds)
    assert found == pytest.approx([400e-9, 200e-9, 200e-9])
    assert sampler.rates == [SAMPLES_PER_SECOND, BACKGROUND_PER_SECOND, SAMPLES_PER_SECOND]


def test_where_some_were_lost_those_that_are_left_count_for_the_step_and_not_for_the_job(
    shares: StepShares, sampler: FakeSampler
) -> None:
    run = one_step(shares, seen_in(sampler, kernel=ENOUGH, host=1))
    sampler.lost = True
    with shares.sampling() as found:
        run()
    assert found == {}
    assert only_split(shares).newest == SampleCounts(kernel=ENOUGH, host=1)


def test_a_step_without_a_sample_of_kernel_or_host_has_no_split(
    shares: StepShares, sampler: FakeSampler
) -> None:
    run = one_step(shares, seen_in(sampler, system=7, unclassified=3))
    with shares.sampling():
        run()
    assert shares.splits("eager") == []
    assert shares.newest("eager", "decode", 1) is None
    assert shares.newest("no_grad", "decode", 1) is None


def modes_of(steps: dict[tuple[Phase, int], Step]) -> dict[str, ConfiguredMode]:
    status = ModeStatus(mode="eager", removes="", state="ready", effective="eager")
    return {"eager": ConfiguredMode(MODES["eager"], status, steps)}


class MadeGenerator:
    """Runs the prefill and two decode steps of a job, then raises `error`, if there is one."""

    lead = Generator.lead

    def __init__(self, sampler: FakeSampler, error: Exception | None = None) -> None:
        self._sampler = sampler
        self._error = error
        self.ran: list[tuple[Job, bool]] = []

    def run(self, job: Job, steps: dict[tuple[Phase, int], Step], result: JobResult, meter: Meter) -> None:
        self.ran.append((job, self._sampler.running))
        result.bucket = 1
        meter.run(steps["prefill", 1], ARGUMENTS, result.prefill)
        for _ in range(2):
            meter.run(steps["decode", 1], ARGUMENTS, result.decode)
        if self._error is not None and not job.stream:
            raise self._error


def ran(shares: StepShares, sampler: FakeSampler, generator: MadeGenerator, **options: object) -> JobResult:
    """A job in eager, whose prefill is seen in kernels and whose decode is seen in the host."""
    modes = modes_of(
        {("prefill", 1): seen_in(sampler, kernel=5), ("decode", 1): seen_in(sampler, host=ENOUGH)}
    )
    shares.add("eager", modes["eager"].steps)
    runner = JobRunner(
        cast(Generator, generator),
        cast(RequestProfiler, SimpleNamespace(is_due=lambda job: False)),
        shares,
        HostMeter(shares.labels),
        cast(Warmup, None),
        lambda _: None,
    )
    result = JobResult()
    runner.run(local_job("a", "eager", ["x"], 4, **options), modes["eager"], result)
    return result


@pytest.mark.parametrize(
    ("options", "rate"), [({}, BACKGROUND_PER_SECOND), ({"sample": True}, SAMPLES_PER_SECOND)]
)
def test_a_job_has_the_samples_of_its_own_steps_by_phase(
    shares: StepShares, sampler: FakeSampler, options: dict[str, bool], rate: float
) -> None:
    result = ran(shares, sampler, MadeGenerator(sampler), **options)
    assert sampler.rates == [rate]
    assert sampler.running != bool(options)
    assert result.sampled == bool(options)
    assert result.prefill.samples == SampleCounts(kernel=5)
    assert result.decode.samples == SampleCounts(host=2 * ENOUGH)


def test_what_leads_a_job_that_asks_for_samples_is_not_sampled_and_its_time_is_queue(
    shares: StepShares, sampler: FakeSampler
) -> None:
    generator = MadeGenerator(sampler)
    result = ran(shares, sampler, generator, sample=True)
    (lead, lead_sampled), (_, sampled) = generator.ran
    assert (lead.max_new_tokens, lead_sampled, sampled) == (1, False, True)
    assert result.queue_ns > 0
    assert result.taken_ns > 0


def test_in_the_background_sampling_goes_on_between_jobs_until_it_is_to_rest(
    shares: StepShares, sampler: FakeSampler
) -> None:
    run = one_step(shares, seen_in(sampler, kernel=1, host=1))
    found = []
    for _ in range(3):
        with shares.sampling() as own:
            run()
        found.append(own)
    assert sampler.rates == [BACKGROUND_PER_SECOND]
    assert found == [{}, {}, {}]  # too few for a split of their own
    assert shares.splits("eager") == []
    shares.rest()
    assert only_split(shares).all == SampleCounts(kernel=3, host=3)
    assert not sampler.running


def test_the_own_samples_of_a_long_job_are_those_since_it_began(
    shares: StepShares, sampler: FakeSampler
) -> None:
    short, long = seen_in(sampler, host=3), seen_in(sampler, kernel=ENOUGH)
    shares.add("eager", {("prefill", 1): short, ("decode", 1): long})
    with shares.sampling():
        shares.labels.call(short, ARGUMENTS)
    with shares.sampling() as found:
        shares.labels.call(long, ARGUMENTS)
    assert found == {("eager", "decode", 1): SampleCounts(kernel=ENOUGH)}
    assert shares.newest("eager", "prefill", 1) == SampleCounts(host=3)


def refused(*_: object) -> FakeSampler:
    raise SamplerError("no timer today")


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals")
@pytest.mark.parametrize(
    ("instrumentation", "reason"),
    [("off", "without LAUNCHBOUND_INSTRUMENTATION"), ("full", "no timer today")],
)
def test_an_engine_that_samples_nothing_serves_says_why_and_claims_no_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instrumentation: str, reason: str
) -> None:
    monkeypatch.setattr(step_shares, "CpuSampler", refused)
    sent: list[ToFront] = []
    job = local_job("a", "inference_mode", [PROMPT], 4, ignore_eos=True, sample=True)
    inbox = LocalInbox([job], sent.append)
    chosen = settings(tmp_path, batch_sizes=[1], modes=["inference_mode"], instrumentation=instrumentation)
    Engine(chosen, inbox).run()
    assert all(reason in (one.no_samples or "") for one in sent if isinstance(one, EngineStatus))
    assert inbox.modes["inference_mode"].splits == []
    (outcome,) = inbox.outcomes
    assert (outcome.kind, outcome.sampled) == ("ok", False)
    assert outcome.timings is not None
    decode = outcome.timings.decode
    assert decode.steps == 3
    assert (decode.wall_seconds is None) == (instrumentation == "off")
    assert decode.dispatch_seconds is decode.kernel_seconds is outcome.timings.dispatch_source is None
