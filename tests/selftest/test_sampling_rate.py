"""The check at two sampling rates: what it samples, and where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from service.selftest import sampling_rate
from service.selftest.check import run_check
from service.selftest.places import Place
from service.selftest.sampling_rate import FEWER, SAMPLED_SECONDS, SAMPLING_RATE, measure_rates
from service.step.native.perf_events import SAMPLES_PER_SECOND
from service.step.native.stacks import SampledSteps


class MadeUpBench:
    """Steps by name; at batch 16 fewer samples find less dispatch."""

    def __init__(self, modes: list[str]) -> None:
        self.modes = modes
        self.settings = SimpleNamespace(batch_sizes=[4, 16, 1])

    def case(self, mode: str, bucket: int, phase: str) -> Place:
        return Place(mode, phase, bucket)  # type: ignore[arg-type]


def variants(
    device: str = "cpu", modes: tuple[str, ...] = ("eager", "no_grad", "compiled")
) -> SimpleNamespace:
    bench = MadeUpBench(list(modes))
    return SimpleNamespace(device=torch.device(device), served_bench=bench, isolated=nullcontext)


@contextmanager
def sampler(samples_per_second: int = SAMPLES_PER_SECOND) -> Iterator[int]:
    yield samples_per_second


def sampled(rate: int, case: Place, seconds: float) -> SampledSteps:
    assert seconds == SAMPLED_SECONDS[rate]
    dispatch = 0.4 if case.bucket == 16 and rate == FEWER else 0.5
    return SampledSteps(1 - dispatch, 100, 2e-3, 0, [2.2e-3, 2.6e-3])


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_rate, "stack_sampler", sampler)
    monkeypatch.setattr(sampling_rate, "sampled", sampled)


def test_decode_at_the_smallest_and_the_largest_batch_is_sampled_at_both_rates() -> None:
    found = measure_rates(variants(), lambda text: None)  # type: ignore[arg-type]
    places = [Place(mode, "decode", bucket) for mode in ("eager", "compiled") for bucket in (1, 16)]
    assert set(found) == {(place, rate) for place in places for rate in (SAMPLES_PER_SECOND, FEWER)}
    seen = found[places[1], FEWER][0]
    assert (seen.dispatch_share, seen.slowed) == pytest.approx((0.4, 1.2))


def test_the_rows_say_where_the_rate_moves_the_split_and_what_sampling_costs() -> None:
    rows = {
        row.name: row for row in run_check("x", SAMPLING_RATE, variants(modes=("eager",)), lambda text: None)
    }
    assert {name: row.verdict for name, row in rows.items()} == {
        "sampled a fifth as often: dispatch, eager, decode, batch 1": "pass",
        "sampled a fifth as often: kernel, eager, decode, batch 1": "pass",
        "sampled a fifth as often: dispatch, eager, decode, batch 16": "fail",
        "sampled a fifth as often: kernel, eager, decode, batch 16": "fail",
    }
    worst = rows["sampled a fifth as often: dispatch, eager, decode, batch 16"]
    assert worst.value == pytest.approx(0.8)
    assert worst.note == "steps take 1.20 and 1.20 times as long at 999 and 4,999 samples per second"


def test_a_service_of_one_batch_size_has_one_step_per_mode() -> None:
    one = variants()
    one.served_bench.settings.batch_sizes = [4]
    assert {place.bucket for place, _ in measure_rates(one, lambda text: None)} == {4}  # type: ignore[arg-type]


def test_where_dispatch_is_measured_there_is_nothing_to_check() -> None:
    (row,) = run_check("x", SAMPLING_RATE, variants("cuda"), lambda text: None)
    assert (row.verdict, row.note) == ("not measurable here", "on CUDA dispatch is measured")
