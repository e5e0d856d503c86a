"""The checks of the split: which steps they sample, when, and what they say where they cannot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

from service.measure.cpu_sampler import SampledSteps
from service.proof import split
from service.proof.rows import run_check
from service.proof.worker import CHECKS
from service.records import PHASES, SampleCounts
from service.step.trace import LEAD_MARK, STEP_MARK, Event
from tests.proof.made_bench import MadeUpBench, MadeUpCase
from tests.proof.samples import KERNEL_SECONDS, LADDER
from tests.step.made import KERNEL_US, KERNELS, graph_id, replays
from tests.support.small_models import quiet

SPLIT_CHECKS = ["injected", "sampling-rate", "plain-kernels", "unclassified", "background"]
Beside = Callable[[], object] | None


def of_share(kernel: float, seconds: float = 1e-3) -> SampledSteps:
    counts = SampleCounts(kernel=round(1e6 * kernel), host=round(1e6 * (1 - kernel)))
    return SampledSteps(counts, seconds, seconds, 2)


@pytest.mark.parametrize("check", SPLIT_CHECKS)
def test_where_the_thread_cannot_be_sampled_or_dispatch_is_measured_the_rows_say_so(check: str) -> None:
    for bench, why in (
        (MadeUpBench(refused="raise `ulimit -i`"), "raise `ulimit -i`"),
        (MadeUpBench(device="cuda"), "on CUDA dispatch is measured"),
    ):
        rows = run_check("x", CHECKS[check], bench, quiet)[0]
        assert {(row.verdict, row.note) for row in rows} == {("not measurable here", why)}


# Equal kernels


class Lengths:
    """Steps of 2 ms of kernels per row and their mode's dispatch; eager's prefills have `error` more kernels.

    `worn`: how much longer kernels are per second between the beginnings of two steps.
    """

    def __init__(self, error: float = 0.0, worn: float = 0.0) -> None:
        self.error, self.worn = error, worn

    def kernel(self, step: split.ServedStep) -> float:
        own = self.error if (step.mode, step.phase) == ("eager", "prefill") else 0.0
        return (KERNEL_SECONDS + own) * step.bucket

    def sampled(self, sampler: object, case: MadeUpCase, seconds: float, beside: Beside) -> SampledSteps:
        kernel, dispatch = self.kernel(case.named), LADDER[case.named.mode]
        kernel += self.worn * (kernel + dispatch + rested(beside))
        return of_share(kernel / (kernel + dispatch), kernel + dispatch)

    def steady_seconds(self, case: MadeUpCase, steps: int) -> float:
        return self.kernel(case.named) + LADDER[case.named.mode]


def rested(beside: Beside) -> float:
    """The seconds that `beside` is busy for."""
    if beside is None:
        return 0.0
    assert isinstance(beside, partial)
    assert beside.func is split.busy_for
    return float(beside.args[0])


def plain_verdicts(lengths: Lengths, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(split, "sampled", lengths.sampled)
    monkeypatch.setattr(MadeUpCase, "steady_seconds", lambda case, steps: lengths.steady_seconds(case, steps))
    found = split.measure_plain(MadeUpBench(), quiet)  # type: ignore[arg-type]
    return {row.name: row.verdict for row in split.judge_plain(found)}


@pytest.mark.parametrize(("error", "verdict"), [(0.0, "pass"), (1e-3, "fail")])
def test_page_faults_of_eager_s_prefill_fail_the_rows_of_prefill_and_no_other(
    error: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = plain_verdicts(Lengths(error), monkeypatch)
    assert len(verdicts) == 2 * len(PHASES) * 3
    assert {found for name, found in verdicts.items() if "prefill" in name} == {verdict}
    assert {found for name, found in verdicts.items() if "decode" in name} == {"pass"}


def test_steps_of_the_faster_modes_are_as_far_apart_as_eager_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a neighbour does to the caches in that time makes the next kernels longer."""
    assert set(plain_verdicts(Lengths(worn=0.5), monkeypatch).values()) == {"pass"}


def test_no_kernel_time_in_either_mode_is_not_equality() -> None:
    found = {split.ServedStep(mode, "decode", 1): [of_share(0.0)] * 24 for mode in split.PLAIN}
    assert [row.verdict for row in split.judge_plain(found)] == ["fail", "fail"]


# On a GPU: sessions as it would record them

CPU = torch.device("cpu")


class Session:
    """What is asked of a session: the profiler's own table, in microseconds of the device."""

    class Line:
        def __init__(self, key: str, microseconds: float) -> None:
            self.key = key
            self.self_device_time_total = microseconds
            self.device_type = DeviceType.CUDA

    def key_averages(self) -> list[Line]:
        others = [self.Line(name, 1e6) for name in ("Memcpy DtoD", "Memset", STEP_MARK, LEAD_MARK)]
        return [self.Line("k", split.STEPS * KERNELS * KERNEL_US), *others]


def of_the_next_launch(step: int) -> int:
    return graph_id((step + 1) % split.STEPS)


def found(monkeypatch: pytest.MonkeyPatch, events: list[Event]) -> tuple[float, float] | None:
    case: Any = type("Case", (), {"call": None})
    monkeypatch.setattr(split, "record_session", lambda *_: Session())
    monkeypatch.setattr(split, "chrome_events", lambda _: events)
    return split.kernel_seconds(CPU, case)


def test_neither_sum_has_what_separates_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = pytest.approx(split.STEPS * KERNELS * KERNEL_US / 1e6)
    for ids in (graph_id, of_the_next_launch):
        assert found(monkeypatch, replays(split.STEPS, ids)) == (seconds, seconds)


def test_replays_that_nothing_separates_have_no_kernel_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, replays(split.STEPS, of_the_next_launch, separated=False)) is None
    assert found(monkeypatch, []) is None
