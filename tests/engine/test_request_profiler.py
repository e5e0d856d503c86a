"""Which requests are profiled, and whose kernel times the others have, as on CUDA; no session is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from service.engine.generation import JobResult
from service.engine.inbox import local_job
from service.engine.outcome import totals
from service.engine.profiler import RequestProfiler
from service.step.meters import Meter, Readings
from service.step.trace import ProfiledStep

PLAIN = local_job("plain", "eager", ["x"], 4)
ASKED = local_job("asked", "eager", ["x"], 4, profile=True)


class FakeProfiler:
    """Finds one prefill step and three of decode, of which one lost its kernels; counts its warm-ups."""

    def __init__(self) -> None:
        self.warmed = 0
        self.found: tuple[float | None, ...] = (9e-4, 2e-4, None, 3e-4)

    def warm(self) -> None:
        self.warmed += 1

    def run(
        self, identity: str, about: Any, meter: Any, action: Callable[[Meter], None]
    ) -> list[ProfiledStep]:
        action(meter)
        return [
            ProfiledStep(1, 0, kernels=seconds and 90, launches=90, kernel_seconds=seconds)  # type: ignore[arg-type]
            for seconds in self.found
        ]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeProfiler:
    made = FakeProfiler()
    monkeypatch.setattr("service.engine.profiler.Profiler", lambda *_: made)
    return made


def on_cuda(every: int | None, folder: Path) -> RequestProfiler:
    return RequestProfiler(torch.device("cuda"), every, folder)


def finished() -> JobResult:
    """What a job of one prefill step and three of decode left behind, at batch bucket 4."""
    return JobResult(bucket=4, prefill=Readings(call=[1]), decode=Readings(call=[1] * 3))


def profiled(profiler: RequestProfiler) -> JobResult:
    result = finished()
    meter: Any = None
    result.profile = profiler.profile(ASKED, result, meter, lambda _: None)
    return result


def test_on_cuda_no_turn_comes_before_the_profiler_is_attached_and_a_wish_is_granted(
    fake: FakeProfiler, tmp_path: Path
) -> None:
    profiler = on_cuda(1, tmp_path)
    assert not profiler.is_due(PLAIN)
    assert profiler.is_due(ASKED)
    assert not profiler.used
    profiler.warm()
    assert profiler.is_due(PLAIN)


def test_on_a_cpu_turns_come_from_the_start(fake: FakeProfiler, tmp_path: Path) -> None:
    profiler = RequestProfiler(torch.device("cpu"), 2, tmp_path)
    assert [profiler.is_due(PLAIN) for _ in range(4)] == [False, True, False, True]


def test_the_profiler_is_warmed_once_and_not_after_a_request_that_used_it(
    fake: FakeProfiler, tmp_path: Path
) -> None:
    profiler = on_cuda(None, tmp_path)
    profiler.warm()
    profiler.warm()
    assert fake.warmed == 1
    other = on_cuda(None, tmp_path)
    profiled(other)
    assert other.used
    other.warm()
    assert fake.warmed == 1


def test_the_first_request_has_the_kernel_times_that_warm_up_learnt(
    fake: FakeProfiler, tmp_path: Path
) -> None:
    profiler = on_cuda(None, tmp_path)
    profiler.kernel_times.add("eager", "decode", 4, [1e-4] * 8)
    estimates = profiler.estimates(PLAIN, finished(), {})
    assert estimates.kernel_source == "sampled"
    assert estimates.kernel_per_step_seconds == {"prefill": None, "decode": 1e-4}


def test_a_profiled_request_adds_the_median_of_the_steps_whose_kernels_were_seen(
    fake: FakeProfiler, tmp_path: Path
) -> None:
    profiler = on_cuda(None, tmp_path)
    profiled(profiler)
    assert profiler.kernel_times.per_step("eager", "decode", 4) == pytest.approx(2.5e-4)
    assert profiler.kernel_times.per_step("eager", "prefill", 4) == pytest.approx(9e-4)
    (decode,) = [one for one in profiler.kernel_times.of_mode("eager") if one.phase == "decode"]
    assert decode.samples == 1


def test_a_trace_that_lost_kernels_is_not_called_exact_nor_counted(
    fake: FakeProfiler, tmp_path: Path
) -> None:
    profiler = on_cuda(None, tmp_path)
    profiler.kernel_times.add("eager", "decode", 4, [1e-4] * 8)
    result = profiled(profiler)
    estimates = profiler.estimates(ASKED, result, {})
    assert estimates.kernel_source == "sampled"
    assert estimates.kernel_per_step_seconds["decode"] == 1e-4
    assert totals(result) == (None, 4 * 90)


def test_a_trace_that_has_all_kernels_is_the_request_s_own(fake: FakeProfiler, tmp_path: Path) -> None:
    fake.found = (9e-4, 2e-4, 2e-4, 3e-4)
    profiler = on_cuda(None, tmp_path)
    result = profiled(profiler)
    estimates = profiler.estimates(ASKED, result, {})
    assert estimates.kernel_source == "profiled"
    assert estimates.kernel_per_step_seconds == {"prefill": 9e-4, "decode": pytest.approx(7e-4 / 3)}
    assert totals(result) == (4 * 90, 4 * 90)
