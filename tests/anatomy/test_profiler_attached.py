"""On CUDA the profiler is attached behind what a study times; where it was before, a note says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

from service.anatomy import budget, common, rms_norm, studies
from service.anatomy.budget import BudgetArguments, draw_budget
from service.anatomy.common import ATTACHED
from service.anatomy.layers import study as layers
from service.anatomy.operators import calls
from service.anatomy.operators import study as operators
from service.anatomy.operators.calls import thread_keys
from service.anatomy.operators.study import OperatorsArguments, list_operators
from service.measure.cases import Bench, Case
from service.measure.step_costs import measure_roof
from service.modes import MODES
from service.records import EngineSettings
from service.step import profiling
from service.step.roofs import NullKernel
from service.step.trace import ProfiledStep
from tests.anatomy.conftest import printed
from tests.support.small_models import quiet

CUDA = torch.device("cuda")
PROFILED = ProfiledStep(operators=1, copies=0, kernels=1, launches=1, kernel_seconds=1e-6)
SETTINGS = EngineSettings(address="", device="cuda", modes=["eager"], batch_sizes=[1], cache_folder="")


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of recorded sessions, of which none is real; the process has had none before."""
    found: list[str] = []

    def record(device: torch.device, call: object, steps: int) -> list[dict[str, Any]]:
        found.append(device.type)
        profiling._sessions_of.add("cuda")
        return []

    monkeypatch.setattr(profiling, "record_steps", record)
    monkeypatch.setattr(profiling, "_sessions_of", set())
    return found


@pytest.fixture
def on_cuda(bench: Bench, sessions: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`bench` calls itself one of a CUDA device; what it does in order: `timed`, `attached`, `recorded`."""
    order: list[str] = []
    roof = measure_roof(bench)
    seconds, warm = Case.call_seconds, profiling.warm_profiler

    def timed(case: Case) -> float:
        order.append("timed")
        return seconds(case)

    def attached(device: torch.device) -> None:
        order.append("attached")
        warm(device)

    def alone(device: torch.device) -> NullKernel:
        order.append("timed")
        return NullKernel({"alone": 1e-6})

    def recorded(*given: Any, **named: Any) -> list[calls.StepCalls]:
        order.append("recorded")
        return calls.record(*given, **named)

    monkeypatch.setattr(Case, "call_seconds", timed)
    monkeypatch.setattr(operators, "record", recorded)
    monkeypatch.setattr(profiling, "warm_profiler", attached)
    monkeypatch.setattr(budget, "measure_null_kernel", alone)
    monkeypatch.setattr(budget, "measure_roof", lambda _: roof)
    monkeypatch.setattr(calls, "profile_steps", lambda *_: [PROFILED])
    monkeypatch.setattr(calls, "attach_profiler", lambda _: profiling.attach_profiler(CUDA))
    monkeypatch.setattr(operators, "reported_waits", lambda *_: [])
    monkeypatch.setattr(operators, "kernels_of", lambda *_: None)
    keys = thread_keys(MODES["eager"], bench.device, bench.precision)
    monkeypatch.setattr(operators, "thread_keys", lambda *_: keys)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench, "device", CUDA)
    return order


def test_a_bench_of_a_cuda_device_begins_without_the_profiler(
    sessions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SimpleNamespace(device=CUDA, cpus=[])
    monkeypatch.setattr(common, "prepare_process", lambda *_: None)
    monkeypatch.setattr(common, "Bench", lambda _: made)
    monkeypatch.setattr(common, "pin", lambda _: None)
    assert common.prepare_bench(SETTINGS) is cast(Bench, made)
    assert sessions == []


def test_a_budget_profiles_behind_all_that_it_times_its_own_step_and_the_null_kernel_too(
    bench: Bench, on_cuda: list[str]
) -> None:
    arguments = BudgetArguments(modes=["eager"], batch_sizes=[1], mode="no_grad", rounds=6)
    found = draw_budget(bench, arguments, quiet)
    assert on_cuda == ["timed"] * (len(on_cuda) - 1) + ["attached"]
    assert ATTACHED not in found.notes


def test_the_seconds_of_a_listed_step_are_of_before_it_was_profiled(bench: Bench, on_cuda: list[str]) -> None:
    found = list_operators(bench, OperatorsArguments(mode="eager", native=False), quiet)
    assert 0 < found.step_seconds.samples <= on_cuda.index("recorded") < on_cuda.index("attached")
    assert on_cuda.count("attached") == 1
    assert ATTACHED not in found.notes


def test_a_second_study_of_a_process_says_that_the_first_one_profiled(
    bench: Bench, on_cuda: list[str]
) -> None:
    arguments = BudgetArguments(modes=["eager"], batch_sizes=[1], rounds=6)
    assert ATTACHED not in draw_budget(bench, arguments, quiet).notes
    assert ATTACHED in draw_budget(bench, arguments, quiet).notes
    assert on_cuda.count("attached") == 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("budget", {"modes": ["eager"], "batch_sizes": [1], "rounds": 6}),
        ("layers", {"rounds": 6}),
        ("operators", {"mode": "eager", "native": False}),
        ("probes", {"name": "view-keeps-storage", "repeats": 6}),
        ("rms-norm", {"rounds": 6}),
        ("timeline", {"mode": "eager"}),
    ],
)
def test_every_study_that_times_says_and_prints_what_was_attached_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, object]
) -> None:
    monkeypatch.setattr(common, "profiler_attached", lambda: True)
    monkeypatch.setattr(layers, "load_loops", lambda *_: None)
    monkeypatch.setattr(layers, "time_operations", lambda *_: [])
    monkeypatch.setattr(rms_norm, "_compiled", lambda norm, _: (rms_norm.surrounded(norm), 1))
    found: Any = studies.run(bench, name, msgspec.json.encode(arguments), quiet)
    assert ATTACHED in found.notes
    assert ATTACHED in printed(studies.shown(name), found, width=10_000)
