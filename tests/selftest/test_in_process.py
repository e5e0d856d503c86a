"""How the checks in process take their samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pytest
import torch

from models.config import Config
from models.transformer import Transformer
from service.engine.job_result import JobResult
from service.measure.cases import Case, build_case
from service.selftest import injected_samples
from service.selftest.injected_samples import Arm, TimedWork, step_sample
from service.selftest.injected_work import kernel_work
from service.selftest.own_work import gaps_seconds
from service.step.buffers import allocate
from service.step.native import stacks
from service.step.native.stacks import Recording, Sample
from service.step.precision import PRECISIONS

CONFIG = Config(layers=1, width=16, heads=2, kv_heads=1, head_width=8, hidden=32, vocabulary=64, context=64)


class MadeUpSampler:
    """In place of a `StackSampler`: half of the samples are kernel; notes when it is paused."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        found = Recording()
        self._events.append("sampled")
        yield found
        self._events.append("ended")
        found.samples = [Sample("kernel", "gemm", "mkl"), Sample("host", "call", "python")] * 50

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._events.append("paused")
        yield
        self._events.append("resumed")


def test_work_beside_runs_after_each_step_and_is_neither_sampled_nor_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacks, "_seconds_of", one_step)
    events: list[str] = []
    arm = Arm(small_case(events), None, lambda: events.append("work"))
    sample = step_sample(MadeUpSampler(events), arm)  # type: ignore[arg-type]
    assert events == [
        *["step", "work"] * 2,
        "sampled", "step", "paused", "work", "resumed", "ended",
    ]  # fmt: skip
    assert sample == (1e-3, 1e-3, 0.0)


def test_parts_and_the_work_inside_are_those_of_the_sampled_steps_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of steps that take 3 ms, and 4 while they are sampled."""
    passes = iter([[3e-3], [3e-3], [4e-3, 4e-3]])
    inside = TimedWork(lambda: None)

    def steps(*_: object) -> list[float]:
        seconds = next(passes)
        inside.seconds += [1.5e-3 if one == 4e-3 else 1e-3 for one in seconds]
        return seconds

    monkeypatch.setattr(stacks, "_seconds_of", steps)
    inside.seconds = [9.0]  # of a round before
    sample = step_sample(MadeUpSampler([]), Arm(small_case([]), inside, None))  # type: ignore[arg-type]
    assert sample == pytest.approx((2e-3, 2e-3, 1.5e-3))


def test_work_times_each_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 2_000_000, 5_000_000, 6_000_000])
    monkeypatch.setattr(injected_samples, "thread_time_ns", lambda: next(clock))
    done: list[int] = []
    work = TimedWork(lambda: done.append(1))
    work()
    work()
    assert (work.seconds, done) == ([2e-3, 1e-3], [1, 1])


def one_step(
    run: Callable[[], object], seconds: float, beside: Callable[[], object] | None, least: int = 1
) -> list[float]:
    run()
    if beside:
        beside()
    return [2e-3]


def small_case(events: list[str]) -> Case:
    model = Transformer(CONFIG, 1).eval()
    buffers = allocate(model, [1], 1)[1]
    case = build_case(
        "inference_mode", "decode", model, buffers, PRECISIONS["float32"], lambda: events.append("step")
    )
    events.clear()
    return case


def test_the_kernel_that_is_injected_is_one_operator_of_the_given_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes: list[tuple[int, ...]] = []

    def igamma(shape: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> Any:
        shapes.append(tuple(out.shape))

    monkeypatch.setattr(torch, "igamma", igamma)
    kernel_work(torch.device("cpu"), 7)()
    assert shapes == [(7,)]


def test_own_work_is_the_mean_gap_between_two_looks_for_cancellations_less_the_wait_for_the_device() -> None:
    begins = [0, 110_000, 230_000, 340_000, 460_000]
    calls = [(begin, begin + 100_000) for begin in begins]
    assert gaps_seconds(calls, JobResult()) == pytest.approx(15e-6)
    waiting = JobResult()
    waiting.decode.wait = [5_000] * 5
    assert gaps_seconds(calls, waiting) == pytest.approx(10e-6)


def test_a_look_in_every_fifth_gap_counts_a_fifth_in_own_work() -> None:
    gaps = [10_000, 10_000, 10_000, 10_000, 60_000] * 6
    step = 1_980_000
    begins = [0, *accumulate(gap + step for gap in gaps)]
    calls = [(begin, begin + step) for begin in begins]
    assert gaps_seconds(calls, JobResult()) == pytest.approx(20e-6)
