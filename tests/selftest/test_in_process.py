"""How the checks in process take their samples."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from models.config import Config
from models.transformer import Transformer
from service.engine.job_result import JobResult
from service.measure.cases import Case, build_case
from service.selftest.injected_samples import STEPS, floor_sample, shortest, step_sample
from service.selftest.injected_work import kernel_work
from service.selftest.own_work import gaps_seconds
from service.step.buffers import allocate
from service.step.callables import InjectedWork
from service.step.precision import PRECISIONS
from service.step.untimed import LEAD_STEPS, LEAD_STEPS_OF_FLOOR

CONFIG = Config(layers=1, width=16, heads=2, kv_heads=1, head_width=8, hidden=32, vocabulary=64, context=64)


class Falling:
    """A step that takes 100 s, 99 s, 98 s, …"""

    def __init__(self) -> None:
        self._seconds = iter(range(100, 0, -1))

    def call_seconds(self) -> float:
        return float(next(self._seconds))


def test_work_beside_steps_runs_after_each_and_is_not_in_their_time() -> None:
    works: list[int] = []
    sample = step_sample(Falling(), lambda: works.append(1))  # type: ignore[arg-type]
    assert len(works) == LEAD_STEPS + STEPS
    assert sample.step_seconds == pytest.approx(100 - LEAD_STEPS - STEPS + 1, abs=0.5)
    assert 0 < sample.work_seconds < 1
    assert step_sample(Falling(), None).work_seconds == 0.0  # type: ignore[arg-type]


def test_a_step_is_that_of_the_shortest_sum_so_that_equal_totals_show_what_was_added() -> None:
    random = Random(1)
    totals, added = [], []
    for _ in range(200):
        works = [1e-3 + random.expovariate(1e4) for _ in range(STEPS)]
        steps = [2e-3 + random.expovariate(1e4) for _ in range(STEPS)]
        inside = [2e-3 + random.expovariate(1e4) + 1e-3 + random.expovariate(1e4) for _ in range(STEPS)]
        plain, more = shortest(steps, works), shortest(inside, [0.0] * STEPS)
        totals.append(more.step_seconds - plain.step_seconds)
        added.append(plain.work_seconds)
    assert sum(totals) / sum(added) == pytest.approx(1.0, abs=0.01)


def small_case(events: list[str]) -> Case:
    model = Transformer(CONFIG, 1).eval()
    injected = InjectedWork(kernel=lambda: events.append("step"))
    buffers = allocate(model, [1], 1)[1]
    case = build_case("inference_mode", "decode", model, buffers, PRECISIONS["float32"], injected)
    events.clear()
    return case


def test_work_beside_samples_of_a_floor_runs_before_each_call() -> None:
    events: list[str] = []
    case = small_case(events)
    assert floor_sample(case, lambda: events.append("work")).step_seconds > 0
    assert events == ["work", "step"] * (LEAD_STEPS_OF_FLOOR + STEPS)


def test_the_kernel_that_is_injected_is_one_operator_of_the_given_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes: list[tuple[int, ...]] = []

    def igamma(shape: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> Any:
        shapes.append(tuple(out.shape))

    monkeypatch.setattr(torch, "igamma", igamma)
    kernel_work(torch.device("cpu"), 7)()
    assert shapes == [(7,)]


def test_own_work_is_the_mean_gap_of_two_in_a_row_less_the_wait_for_the_device() -> None:
    begins = [0, 110_000, 230_000, 340_000, 460_000]
    calls = [(begin, begin + 100_000) for begin in begins]
    assert gaps_seconds(calls, JobResult()) == pytest.approx(15e-6)
    waiting = JobResult()
    waiting.decode.wait = [5_000] * 5
    assert gaps_seconds(calls, waiting) == pytest.approx(10e-6)
