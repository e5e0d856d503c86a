"""Layers: each has its experiment and its interval, and their sum is compared with the whole call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.anatomy import common
from service.anatomy.common import StudyError
from service.anatomy.layers import variants
from service.anatomy.layers.study import (
    ABLATIONS,
    LayersArguments,
    LayersFinding,
    VariantSeconds,
    describe,
    measure_layers,
    show,
)
from service.anatomy.layers.variants import (
    KERNELS_PER_GRAPH,
    OPERATIONS,
    Loops,
    Setup,
    State,
    Variant,
    hollow_names,
    load_loops,
    variants_of,
)
from service.measure.cases import Bench
from service.step.device_time import MOST_HOLD_SECONDS
from tests.anatomy.conftest import printed
from tests.support.fake_cuda import FakeDevice, pretend_graphs
from tests.support.small_models import quiet, small_bench

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SMALL = LayersArguments(sizes=[4, 16], rounds=6)


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Loops:
    return load_loops(str(tmp_path_factory.mktemp("loops")), quiet)


@pytest.fixture(scope="module")
def bench(loops: Loops) -> Iterator[Bench]:
    with small_bench() as shared:
        yield shared


@pytest.fixture(scope="module")
def finding(bench: Bench) -> LayersFinding:
    return measure_layers(bench, SMALL, quiet)


def test_every_layer_names_its_experiment_and_has_an_interval_or_says_why_not(finding: LayersFinding) -> None:
    for each in finding.operations:
        assert [layer.name for layer in each.layers] == [ablation.name for ablation in ABLATIONS]
        for layer in each.layers:
            assert len(layer.experiment) > 20
            assert (layer.microseconds is None) == (layer.why_not is not None)
            if layer.microseconds:
                assert layer.microseconds.low <= layer.microseconds.value <= layer.microseconds.high


def test_what_is_switched_off_is_measured_but_not_summed(bench: Bench) -> None:
    arguments = LayersArguments(operations=["matmul"], sizes=[4], grad="inference_mode", rounds=6)
    (off,) = measure_layers(bench, arguments, quiet).operations
    summed = {layer.name for layer in off.layers if layer.in_sum}
    assert {"python", "binding", "dispatcher", "operator", "allocator", "kernel"} == summed
    priced = {layer.name for layer in off.layers if layer.microseconds and not layer.in_sum}
    assert priced == {"autograd", "autocast"}


def test_no_experiment_contains_the_whole_call(loops: Loops) -> None:
    """If the whole were part of its own sum, the two would always agree."""
    setup = Setup(CPU, torch.float32, State("enabled"), loops)
    for operation in OPERATIONS.values():
        raw = {name: np.ones(6) for name in variants_of(setup, operation, 4)}
        before, after = (
            [
                ablation.seconds(VariantSeconds.of(setup, operation, given, np.zeros(6)))
                for ablation in ABLATIONS
            ]
            for given in (raw, raw | {"whole": np.full(6, 5.0)})
        )
        np.testing.assert_array_equal(before, after)


NO_LOOPS = Loops(lambda *_: 0.0, lambda *_: 0.0)
CUDA_SETUP = Setup(torch.device("cuda"), torch.float32, State("enabled"), NO_LOOPS)


def test_the_hosts_launch_of_a_graph_is_no_part_of_a_kernel_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(issue_seconds=59e-6, step_seconds=KERNELS_PER_GRAPH * 1e-6)
    pretend_graphs(monkeypatch, variants, device)
    variant = variants.graph_variant(NO_LOOPS, "add", [])
    assert variant.run(1) == pytest.approx(1e-6)
    assert variant.run(64) == pytest.approx(64e-6)


def test_a_replay_that_the_device_may_have_waited_for_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(issue_seconds=2 * MOST_HOLD_SECONDS, step_seconds=1e-3)
    pretend_graphs(monkeypatch, variants, device)
    assert variants.graph_variant(NO_LOOPS, "add", []).run(1) == math.inf


@pytest.mark.parametrize(("lost", "known"), [(0, True), (1, True), (2, False)])
def test_a_kernel_is_left_out_where_too_few_rounds_have_its_time(lost: int, known: bool) -> None:
    kernel = next(ablation for ablation in ABLATIONS if ablation.name == "kernel")
    graph = np.array([1e-6] * (7 - lost) + [math.inf] * lost)
    found = VariantSeconds(CUDA_SETUP, OPERATIONS["add"], {"graph": graph})
    assert (kernel.why_not(found) is None) == known
    assert kernel.seconds(found) == pytest.approx([1e-6] * (7 - lost))


@given(st.floats(0.5, 2.0))
def test_a_whole_that_is_not_the_sum_is_reported(share: float) -> None:
    """With made-up variants of which the parts are known: 1 µs each of eight, seven in the sum."""
    setup = Setup(CPU, torch.float32, State("enabled"), NO_LOOPS)
    seconds = {"hollow": 1.0, "from python": 3.0, "from native": 1.0, "taped": 4.0, "dispatcher": 1.0,
               "compute nothing": 2.0, "compute": 3.0, "allocate": 1.0, "whole": 7.0 * share}  # fmt: skip
    nothing = (
        "python clock",
        "native clock",
        "autocast",
        "no autocast",
        "cast",
        "cast of one",
        "allocate nothing",
    )
    raw = {name: np.full(6, seconds.get(name, 0.0) * 1e-6) for name in (*seconds, *nothing)}
    found = describe(VariantSeconds.of(setup, OPERATIONS["add"], raw, np.zeros(6)), 8)
    assert found.sum_microseconds.value == pytest.approx(7.0)
    assert found.agreement.value == pytest.approx(1 / share)
    assert found.agrees == (abs(1 / share - 1) <= 0.15)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_hollow_statement_runs_no_operator(name: str) -> None:
    operation = OPERATIONS[name]
    names = operation.names(operation.tensors(2, 2, CPU, torch.float32))
    with torch.autograd.profiler.profile() as session:
        assert eval(operation.statement, hollow_names(names)) == ""
    assert not session.function_events
    assert isinstance(eval(operation.statement, names), torch.Tensor)


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_those_that_the_operator_allocates(name: str) -> None:
    operation = OPERATIONS[name]
    plain = [tensor.detach() for tensor in operation.tensors(3, 5, CPU, torch.float32)]
    with torch.autograd.profiler.profile(profile_memory=True) as session:
        keep = eval(operation.statement, operation.names(plain))
    allocated = sum(event.cpu_memory_usage for event in session.function_events if event.cpu_parent is None)
    made = sum(result.untyped_storage().nbytes() for result in operation.allocates(plain[0]))
    is_view = keep.untyped_storage().data_ptr() == plain[0].untyped_storage().data_ptr()
    # Mean and deviation of layer norm are freed within the call.
    assert (0 if is_view else keep.untyped_storage().nbytes()) == allocated
    assert made == allocated + (2 * 3 * 4 if name == "layer_norm" else 0)


def test_a_variant_runs_in_its_state_and_leaves_none_behind() -> None:
    seen: list[tuple[bool, bool, bool]] = []

    def run(times: int) -> float:
        seen.append(
            (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
        )
        return 1.0

    for state in (State("enabled", autocast=True), State("no_grad"), State()):
        Variant(run, state).seconds(CPU, 1)
    assert sorted(set(seen)) == [(False, False, False), (False, True, False), (True, False, True)]
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_a_missing_compiler_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(StudyError, match="install g\\+\\+, or set CXX"):
        common.load_library(str(tmp_path), "loops", "", print)


def test_the_table_shows_every_layer_and_how_it_was_isolated(finding: LayersFinding) -> None:
    out = printed(show, finding, width=200)
    for word in (
        "torch.matmul(x, weight)",
        "F.layer_norm",
        *(ablation.name for ablation in ABLATIONS),
        "not here",
        "sum / whole",
    ):
        assert word in out
