"""The checks of the split and of the classes: which steps they sample, and where they cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

from service.measure.cpu_sampler import Place, SampledSteps, SamplerError
from service.measure.rounds import OffCpuTime
from service.proof import classes, split
from service.proof.classes import KINDS
from service.proof.rows import NotMeasurableError, run_check
from service.proof.split import ServedStep
from service.proof.worker import CHECKS
from service.records import PHASES, Phase, SampleCounts
from service.step.callables import InjectedWork
from service.step.trace import LEAD_MARK, STEP_MARK, Event
from tests.proof.samples import KERNEL_SECONDS, LADDER
from tests.step.made import KERNEL_US, KERNELS, graph_id, replays
from tests.support.small_models import quiet


@dataclass(frozen=True, slots=True)
class MadeUpCase:
    """A step of this name. It has no length, and runs nothing but what is injected into it."""

    named: ServedStep
    injected: InjectedWork | None = None

    def steady_seconds(self, steps: int) -> float:
        return 0.0


class MadeUpBench:
    """Steps of some modes at some batch sizes. `refused`: why their thread cannot be sampled."""

    def __init__(self, device: str = "cpu", refused: str | None = None) -> None:
        self.modes = ["eager", "no_grad", "inference_mode", "compiled"]
        self.device = torch.device(device)
        self.settings = SimpleNamespace(cache_folder="cache", batch_sizes=[4, 16, 1])
        self.off_cpu = OffCpuTime()
        self._refused = refused

    @property
    def sampler(self) -> SimpleNamespace:
        if self._refused:
            raise SamplerError(self._refused)
        return SimpleNamespace()

    def case(self, mode: str, bucket: int, phase: Phase = "decode") -> MadeUpCase:
        return MadeUpCase(ServedStep(mode, phase, bucket))

    def shallow_case(self, mode: str, *_: object) -> SimpleNamespace:
        return SimpleNamespace(call=lambda: mode)

    def injected_case(self, mode: str, injected: InjectedWork) -> MadeUpCase:
        return MadeUpCase(ServedStep(mode, "decode", 1), injected)

    @contextmanager
    def isolated(self) -> Iterator[None]:
        yield


# The checks of the split: which steps they sample, when, and what they say where they cannot


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


# The checks of the classes: which work and steps they look at, and where they cannot count


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_of_work_runs_and_is_fused_where_its_mode_would(kind: classes.Kind) -> None:
    fused: list[Callable[..., Any]] = []

    def fuse(function: Callable[..., Any]) -> Callable[..., Any]:
        fused.append(function)
        return function

    kind.work(1, fuse)()
    assert bool(fused) == (kind.name in ("layer norm", "element-wise chain"))


# Instructions


def refusing(folder: Path) -> None:
    raise SamplerError("no compiler here")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda v, m: setattr(v, "device", torch.device("cuda")), "on CUDA"),
        (lambda v, m: m.setattr(torch, "get_num_threads", lambda: 2), "serve with one"),
        (lambda v, m: setattr(v, "modes", ["no_grad", "compiled"]), "compares with eager"),
        (lambda v, m: m.setattr(classes, "InstructionCounter", refusing), "no compiler here"),
    ],
)
def test_where_it_cannot_count_it_says_why(
    change: Callable[[MadeUpBench, pytest.MonkeyPatch], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = MadeUpBench()
    change(bench, monkeypatch)
    with pytest.raises(NotMeasurableError, match=told):
        classes.measure_instructions(bench, quiet)  # type: ignore[arg-type]


# Code of no class

KNOWN = Place("host", "call", "python")
STRANGER = Place("unclassified", "product", "/opt/lib/libnew.so")


def test_the_step_with_the_largest_share_of_unknown_code_is_told_with_its_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def places(sampler: object, case: MadeUpCase) -> Counter[Place]:
        return Counter({KNOWN: 200, STRANGER: 4 * (case.named == ("compiled", "prefill", 16))})

    monkeypatch.setattr(classes, "_places", places)
    found = classes.measure_unclassified(MadeUpBench(), quiet)  # type: ignore[arg-type]
    rows = list(classes.judge_unclassified(found))
    assert [row.verdict for row in rows] == ["pass"] * 3 + ["undecided"]
    assert rows[-1].note == "prefill, batch 16: 20 of 1020, product (20)"


def test_what_the_operating_system_runs_is_no_step_s_code() -> None:
    fault = Place("system", "fault", "[kernel]")
    (row,) = classes.judge_unclassified(
        {ServedStep("eager", "decode", 1): [Counter({KNOWN: 500, fault: 500})]}
    )
    assert (row.verdict, row.note) == ("pass", "decode, batch 1: 0 of 500")
