"""Layers of one call, and its way through the dispatcher: each part has an interval, and all add up."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.anatomy import operator_call
from service.anatomy.common import StudyError
from service.anatomy.layers import study, variants
from service.measure.cases import Bench
from service.modes import GradMode
from tests.anatomy.conftest import CallLister
from tests.support.small_models import quiet

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SMALL = study.LayersArguments(sizes=[4, 16], rounds=6)


@pytest.fixture(scope="module")
def finding(bench: Bench) -> study.LayersFinding:
    return study.measure_layers(bench, SMALL, quiet)


def test_every_layer_names_its_experiment_and_has_an_interval_or_says_why_not(
    finding: study.LayersFinding,
) -> None:
    for each in finding.operations:
        assert [layer.name for layer in each.layers] == [ablation.name for ablation in study.ABLATIONS]
        for layer in each.layers:
            assert len(layer.experiment) > 20
            assert (layer.microseconds is None) == (layer.why_not is not None)
            if layer.microseconds:
                assert layer.microseconds.low <= layer.microseconds.value <= layer.microseconds.high


NO_LOOPS = variants.Loops(lambda *_: 0.0, lambda *_: 0.0)


@given(st.floats(0.5, 2.0))
def test_a_whole_that_is_not_the_sum_is_reported(share: float) -> None:
    """With made-up variants of which the parts are known: 1 µs each of eight, seven in the sum."""
    setup = variants.Setup(CPU, torch.float32, variants.State("enabled"), NO_LOOPS)
    seconds = {"python alone": 1.0, "from python": 3.0, "from native": 1.0, "taped": 4.0, "dispatcher": 1.0,
               "compute nothing": 2.0, "compute": 3.0, "allocate": 1.0, "whole": 7.0 * share}  # fmt: skip
    raw = defaultdict(lambda: np.zeros(6), {name: np.full(6, 1e-6 * one) for name, one in seconds.items()})
    found = study.describe(study.VariantSeconds.of(setup, variants.OPERATIONS["add"], raw, np.zeros(6)), 8)
    assert found.sum_microseconds.value == pytest.approx(7.0)
    assert found.agreement.value == pytest.approx(1 / share)
    assert found.agrees == (abs(1 / share - 1) <= 0.15)


@pytest.mark.parametrize(("lost", "known"), [(1, True), (2, False)])
def test_a_kernel_is_left_out_where_too_few_rounds_have_its_time(lost: int, known: bool) -> None:
    setup = variants.Setup(torch.device("cuda"), torch.float32, variants.State("enabled"), NO_LOOPS)
    graph = np.array([1e-6] * (7 - lost) + [np.inf] * lost)
    found = study.VariantSeconds(setup, variants.OPERATIONS["add"], {"graph": graph})
    kernel = study._layer(study.ABLATIONS[-1], found, in_sum=False)
    assert (kernel.microseconds is not None) == known
    assert kernel.why_not == (None if known else study.HOST_BEHIND)


def test_a_missing_compiler_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(StudyError, match=r"install g\+\+, or set CXX"):
        variants._library(tmp_path, quiet)


EXAMPLE = Path(__file__).parent / "operator_call_finding.json"
GRADS: tuple[GradMode, ...] = ("enabled", "no_grad", "inference_mode")


def follow(bench: Bench, **arguments: Any) -> operator_call.OperatorCallFinding:
    return operator_call.follow_call(
        bench, operator_call.OperatorCallArguments(**{"size": 4, "rounds": 6, **arguments}), quiet
    )


@pytest.fixture(scope="module")
def call_finding(bench: Bench) -> operator_call.OperatorCallFinding:
    return follow(bench)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("grad", GRADS)
@pytest.mark.parametrize("name", variants.OPERATIONS)
def test_a_dispatch_mode_sees_the_calls_that_end_in_a_backend(
    name: str, grad: GradMode, autocast: bool
) -> None:
    operation = variants.OPERATIONS[name]
    tensors = operation.tensors(4, 4, CPU, torch.float32, True)
    call = eval(f"lambda: {operation.statement}", operation.names(tensors))
    with variants.State(grad, autocast).entered(CPU):
        thread = operator_call.ThreadKeys.now()
        keys = operator_call.key_set(operator_call.keys_of(tensors), thread.included) - thread.excluded
        calls = operator_call.dispatched(call, keys)
        with CallLister() as lister:
            call()
    below = lister.names
    ended = [call.operator for call in calls if call.keys and call.keys[-1].kind != operator_call.COMPOSITE]
    through_autocast = {call.operator for call in calls if call.keys and call.keys[-1].key == "AutocastCPU"}
    assert [operator for operator in ended if operator not in through_autocast] == [
        operator for operator in below if operator not in through_autocast
    ]
    assert below
    kinds = [key.kind for call in calls for key in call.keys or () if key.key == "AutocastCPU"]
    assert kinds == (["kernel"] if autocast and operation.lowered else [])


def test_the_running_sum_ends_with_the_sum(call_finding: operator_call.OperatorCallFinding) -> None:
    running = [each.running_microseconds for each in call_finding.slices if each.running_microseconds]
    assert running[-1] == call_finding.sum_microseconds
    assert running[0] == call_finding.slices[0].microseconds
    assert call_finding.whole_microseconds.value > 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"autocast": True}, "falls through"),
        ({"requires_grad": False}, "no node is recorded"),
        ({"grad": "no_grad"}, "passes the autograd keys"),
        ({"expression": "torch.softmax(x, -1)"}, "composite"),
    ],
)
def test_what_the_slices_do_not_say_stands_in_the_notes(
    bench: Bench, call_finding: operator_call.OperatorCallFinding, arguments: dict[str, Any], word: str
) -> None:
    assert not any(word in note for note in call_finding.notes)
    assert any(word in note for note in follow(bench, **arguments).notes)


def test_the_committed_example_has_the_form_of_a_finding(
    call_finding: operator_call.OperatorCallFinding,
) -> None:
    example = json.loads(EXAMPLE.read_text())
    decoded = msgspec.convert(example, operator_call.OperatorCallFinding)
    assert json.loads(msgspec.json.encode(decoded)) == example
    made = json.loads(msgspec.json.encode(call_finding))
    assert made.keys() == example.keys()
    assert [each["name"] for each in made["slices"]] == [each["name"] for each in example["slices"]]
    assert made["calls"] == example["calls"]
