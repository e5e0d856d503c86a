"""The tape: a walk of the graph agrees with autograd's saved-tensor hooks and with a backward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from service.anatomy import tape as study
from service.anatomy.common import StudyError
from service.anatomy.operators.calls import SAME_CALL
from service.anatomy.operators.study import OperatorsArguments, list_operators
from service.measure.cases import Bench
from service.study_names import TAPE_EXPRESSIONS
from tests.support.small_models import quiet

pytestmark = pytest.mark.compiles

FLOATS = 4
X_BYTES, W_BYTES = 32 * 64 * FLOATS, 64 * 64 * FLOATS


@pytest.fixture(scope="module")
def of_step(bench: Bench) -> study.TapeFinding:
    """The tape of a whole step of two sequences, and every mode's step."""
    return study.read_tape(bench, study.TapeArguments(expression="step", batch_size=2), quiet)


def tape_of(bench: Bench, expression: str) -> study.TapeFinding:
    return study.read_tape(bench, study.TapeArguments(expression=expression, mode="no_grad"), quiet)


def test_a_product_saves_its_two_factors_and_each_operator_is_recorded_as_its_node(bench: Bench) -> None:
    finding = tape_of(bench, "matmul")
    product = finding.backward[0]
    assert {(tensor.of, tensor.tensor_bytes) for tensor in product.saved} == {("x", X_BYTES), ("w", W_BYTES)}
    assert finding.held.storage_bytes == X_BYTES + W_BYTES
    assert finding.held.own_bytes == 0
    finding = tape_of(bench, "linear-relu-sum")
    recorded = {
        one.operator: finding.backward[one.node].name for one in finding.forward if one.node is not None
    }
    assert recorded == {
        "aten.mm.default": "MmBackward0",
        "aten.add.Tensor": "AddBackward0",
        "aten.relu.default": "ReluBackward0",
        "aten.sum.default": "SumBackward0",
    }


def test_a_steps_forward_operators_are_those_of_the_operator_study_in_order(
    bench: Bench, of_step: study.TapeFinding
) -> None:
    studied = list_operators(bench, OperatorsArguments(mode="eager", batch_size=2), quiet)
    listed = [
        f"{SAME_CALL.get(one.name, one.name).replace('::', '.')}.{one.overload}" for one in studied.operators
    ]
    # The served step ends with a detach, which frees its tape.
    assert listed[-1] == "aten.detach.default"
    assert [one.operator for one in of_step.forward] == listed[:-1]


@pytest.mark.parametrize("expression", [*TAPE_EXPRESSIONS, "block", "step"])
def test_nodes_saved_what_autograds_hooks_saw_and_without_grad_mode_there_is_no_tape(
    bench: Bench, expression: str
) -> None:
    finding = tape_of(bench, expression)
    if expression != "scale":  # whose factor is a Python number
        assert finding.held.tensors > 0
        computation = study.choose_computation(bench, expression, 1, "decode")
        with torch.enable_grad():
            saved = study.saved_during(computation.run, study.Storages(computation.owned))
        assert finding.held == study.held(saved)
    assert [run.grad for run in finding.untaped] == ["no_grad", "inference_mode"]
    for run in finding.untaped:
        assert [one.operator for one in run.forward] == [one.operator for one in finding.forward]
        assert (run.held.tensors, run.held.storage_bytes) == (0, 0)
        assert all(one.node is None for one in run.forward)


@pytest.mark.parametrize("expression", ["gate", "layer-norm", "block"])
def test_nodes_run_backward_in_the_order_that_is_shown(bench: Bench, expression: str) -> None:
    with torch.enable_grad():
        result = study.choose_computation(bench, expression, 1, "decode").run().sum()
    assert result.grad_fn is not None
    ran: list[str] = []
    nodes = study.execution_order(result.grad_fn)

    def note(name: str) -> Any:
        return lambda *_: ran.append(name)

    for number, node in enumerate(nodes):
        node.register_prehook(note(f"{number} {study.short_name(node)}"))
    result.backward()
    bench.model.zero_grad()
    assert ran == [f"{number} {study.short_name(node)}" for number, node in enumerate(nodes)]


def test_leaves_are_the_tensors_that_get_a_gradient_and_its_bytes_are_theirs(bench: Bench) -> None:
    finding = tape_of(bench, "block")
    computation = study.choose_computation(bench, "block", 1, "decode")
    with torch.enable_grad():
        computation.run().sum().backward()
    got: dict[str, Tensor] = {
        name: tensor.grad
        for _, name, tensor in computation.owned
        if tensor.is_leaf and tensor.grad is not None
    }
    bench.model.zero_grad()
    assert {leaf.name: leaf.grad_bytes for leaf in finding.leaves} == {
        name: grad.untyped_storage().nbytes() for name, grad in got.items()
    }
    assert {leaf.kind for leaf in finding.leaves} == {"input", "parameter"}
    assert [leaf.name for leaf in finding.leaves if leaf.kind == "input"] == ["x"]
    assert finding.grad_bytes == sum(FLOATS * p.numel() for p in bench.model.blocks[0].parameters())


def test_the_peak_is_the_largest_running_sum_of_the_hosts_memory_events() -> None:
    def event(at: float, size: int, device: int = 0) -> dict[str, Any]:
        return {"name": "[memory]", "ts": at, "args": {"Bytes": size, "Device Type": device}}

    events = [event(3, -100), event(1, 100), event(4, 70), event(2, 50), event(2.5, 1000, device=1)]
    peak = study.peak_of_events([*events, {"name": "aten::mm", "ts": 0}])
    assert (peak.peak_bytes, peak.allocations) == (150, 3)


@pytest.mark.parametrize(
    ("source", "words"),
    [(None, "try one of block, step, matmul"), ("x.exp().add_(1)", "do not change in place")],
)
def test_no_expression_beyond_the_menu_is_evaluated_and_none_that_changes_in_place_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, source: str | None, words: str
) -> None:
    if source:
        monkeypatch.setitem(study.TAPE_EXPRESSIONS, "x * x", source)
    with pytest.raises(StudyError, match=words) as refused:
        tape_of(bench, "x * x")
    assert refused.value.param == "expression"
