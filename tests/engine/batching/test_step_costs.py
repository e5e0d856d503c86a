"""What steps cost in each bucket: measured in turns, on a clock that the test keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random

import pytest
import torch

from models.checkpoint import TINY_FOLDER, build
from models.tokenizer import Tokenizer
from service.engine.batching import step_costs
from service.engine.batching.step_costs import LEAST_ROUNDS, ROUNDS, STEPS_EACH, StepCosts
from service.engine.generation import Generator
from service.protocol.messages import Phase
from service.step.buffers import Arguments, allocate
from service.step.callables import Step
from service.step.meters import Readings
from tests.engine.batching.merging import ArrivingQueue

TRUE = {1: 50_000, 4: 130_000, 16: 400_000}
"""Nanoseconds of a decode step; a prefill takes six of them."""


class Machine:
    """Runs steps in no time, and moves its clock by what `TRUE` says times `slow` of now."""

    def __init__(self, slow: Callable[[int], float]) -> None:
        self.now_ns = 0
        self.slow = slow
        self.ran: list[tuple[Phase, int]] = []

    def clock(self) -> int:
        return self.now_ns

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[torch.Tensor, torch.Tensor]:
        bucket, length = arguments[0].shape
        phase: Phase = "decode" if length == 1 else "prefill"
        self.ran.append((phase, bucket))
        self.now_ns += round(TRUE[bucket] * (1 if length == 1 else 6) * self.slow(self.now_ns))
        return torch.zeros(bucket, 8), torch.zeros(bucket, dtype=torch.int64)

    def fetch(self, tokens: torch.Tensor, readings: Readings) -> list[int]:
        return tokens.tolist()


@pytest.fixture(scope="module")
def generator() -> Generator:
    model = build("tiny", max_batch=16)
    buffers = allocate(model, list(TRUE), prefill_chunk=64)
    return Generator(Tokenizer.load(TINY_FOLDER), buffers, model.config.context, ArrivingQueue())


def no_step(*_: object) -> tuple[torch.Tensor, torch.Tensor]:
    raise AssertionError("the machine runs it")


STEPS: Mapping[tuple[Phase, int], Step] = {
    (phase, bucket): no_step for phase in ("prefill", "decode") for bucket in TRUE
}


def measured(
    machine: Machine, generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> tuple[StepCosts, Iterator[None]]:
    monkeypatch.setattr(step_costs, "perf_counter_ns", machine.clock)
    costs = StepCosts()
    return costs, costs.measure("eager", STEPS, generator.places, machine)


def ratio(costs: StepCosts, phase: Phase, bucket: int) -> float:
    one, of_bucket = costs.of("eager", "decode", 1), costs.of("eager", phase, bucket)
    assert one is not None
    assert of_bucket is not None
    return of_bucket / one


def changing(now_ns: int) -> float:
    """Twice as slow in every other half of a second."""
    return 1.0 + (now_ns // 500_000_000) % 2


def spikes(now_ns: int) -> float:
    return 50.0 if Random(now_ns).random() < 0.002 else 1.0


@pytest.mark.parametrize("slow", [lambda _: 1.0, changing, spikes], ids=["steady", "changing", "spikes"])
def test_ratios_hold_on_a_machine_that_changes_its_speed(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, slow: Callable[[int], float]
) -> None:
    costs, work = measured(Machine(slow), generator, monkeypatch)
    assert len(list(work)) == ROUNDS * len(TRUE)
    for bucket, true in TRUE.items():
        assert ratio(costs, "decode", bucket) == pytest.approx(true / TRUE[1], rel=0.05)
        assert ratio(costs, "prefill", bucket) == pytest.approx(6 * true / TRUE[1], rel=0.05)
    assert costs.of("no_grad", "decode", 1) is None


def test_buckets_take_turns(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(lambda _: 1.0)
    costs, work = measured(machine, generator, monkeypatch)
    for _ in TRUE:
        next(work)
    turn = [(("prefill", b), *[("decode", b)] * STEPS_EACH) for b in TRUE]
    assert machine.ran == [step for bucket in turn for step in bucket]
    assert costs.of("eager", "decode", 1) is None
    list(work)
    assert costs.of("eager", "decode", 1) == pytest.approx(TRUE[1])


def test_a_large_model_takes_the_least_number_of_rounds(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, work = measured(Machine(lambda _: 1000.0), generator, monkeypatch)
    assert len(list(work)) == LEAST_ROUNDS * len(TRUE)
