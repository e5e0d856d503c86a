"""The tape: a walk of the graph agrees with autograd's saved-tensor hooks and with a backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from service.anatomy.common import StudyError, own_expressions
from service.anatomy.operators.calls import SAME_CALL
from service.anatomy.operators.study import OperatorsArguments, list_operators
from service.anatomy.tape.graph import execution_order, peak_of_events, short_name
from service.anatomy.tape.study import (
    TapeArguments,
    TapeFinding,
    choose_computation,
    read_tape,
    show,
)
from service.measure.cases import Bench
from service.study_names import TAPE_EXPRESSIONS
from tests.anatomy.conftest import printed
from tests.support.small_models import PLAIN, quiet

pytestmark = pytest.mark.compiles

FLOATS = 4
X_BYTES, W_BYTES = 32 * 64 * FLOATS, 64 * 64 * FLOATS


@pytest.fixture(scope="module")
def of_step(bench: Bench) -> TapeFinding:
    """The tape of a whole step of two sequences, and every mode's step."""
    return read_tape(bench, TapeArguments(expression="step", batch_size=2), quiet)


@pytest.fixture
def own() -> Iterator[None]:
    token = own_expressions.set(True)
    yield
    own_expressions.reset(token)


def tape_of(bench: Bench, expression: str) -> TapeFinding:
    return read_tape(bench, TapeArguments(expression=expression, mode="no_grad"), quiet)


def shown(finding: TapeFinding) -> str:
    text = printed(show, finding, width=160)
    return text


def test_a_product_saves_its_two_factors_and_no_more(bench: Bench) -> None:
    finding = tape_of(bench, "matmul")
    product = finding.backward[0]
    assert {(tensor.of, tensor.tensor_bytes) for tensor in product.saved} == {("x", X_BYTES), ("w", W_BYTES)}
    assert product.saved_bytes == finding.held.storage_bytes == X_BYTES + W_BYTES
    assert finding.held.own_bytes == 0


def test_a_forward_operator_is_recorded_as_the_node_that_was_made_for_it(bench: Bench) -> None:
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
    bench: Bench, of_step: TapeFinding
) -> None:
    studied = list_operators(bench, OperatorsArguments(mode="eager", batch_size=2, native=False), quiet)
    listed = [
        f"{SAME_CALL.get(one.name, one.name).replace('::', '.')}.{one.overload}" for one in studied.operators
    ]
    # The served step ends with a detach, which frees its tape.
    assert listed[-1] == "aten.detach.default"
    assert [one.operator for one in of_step.forward] == listed[:-1]


@pytest.mark.usefixtures("own")
def test_a_detach_is_recorded_where_an_expression_calls_it_and_not_where_autograd_copies(
    bench: Bench,
) -> None:
    assert [one.operator for one in tape_of(bench, "exp").forward] == ["aten.exp.default"]
    assert [one.operator for one in tape_of(bench, "x.detach() @ w").forward] == [
        "aten.detach.default",
        "aten.mm.default",
    ]


@pytest.mark.usefixtures("own")
def test_a_write_in_place_is_no_view_and_brings_no_memory(bench: Bench) -> None:
    finding = tape_of(bench, "(x @ w).add_(b).view(64, 32)")
    assert [(one.operator, one.new_bytes, one.is_view) for one in finding.forward] == [
        ("aten.mm.default", X_BYTES, False),
        ("aten.add_.Tensor", 0, False),
        ("aten.view.default", 0, True),
    ]
    lines = shown(finding).splitlines()
    cells = {line.split("│")[2].strip(): line.split("│")[4].strip() for line in lines if "│ aten." in line}
    assert (cells["aten.add_.Tensor"], cells["aten.view.default"]) == ("–", "view")
    assert cells["aten.mm.default"].endswith("kB")


@pytest.mark.parametrize(
    "expression", [*(name for name in TAPE_EXPRESSIONS if name != "scale"), "block", "step"]
)
def test_the_nodes_saved_tensors_are_those_that_autograds_hooks_saw(bench: Bench, expression: str) -> None:
    finding = tape_of(bench, expression)
    assert finding.held.tensors > 0
    assert msgspec.structs.replace(finding.held, by_kind={}) == msgspec.structs.replace(
        finding.hooked, by_kind={}
    )
    assert finding.held.by_kind == finding.hooked.by_kind


@pytest.mark.parametrize("expression", ["gate", "layer-norm", "block"])
def test_nodes_run_backward_in_the_order_that_is_shown(bench: Bench, expression: str) -> None:
    with torch.enable_grad():
        result = choose_computation(bench, expression, 1, "decode").run().sum()
    assert result.grad_fn is not None
    ran: list[str] = []
    nodes = execution_order(result.grad_fn)

    def note(name: str) -> Any:
        return lambda *_: ran.append(name)

    for number, node in enumerate(nodes):
        node.register_prehook(note(f"{number} {short_name(node)}"))
    result.backward()
    bench.model.zero_grad()
    assert ran == [f"{number} {short_name(node)}" for number, node in enumerate(nodes)]


def test_leaves_are_the_tensors_that_get_a_gradient_and_its_bytes_are_theirs(bench: Bench) -> None:
    finding = tape_of(bench, "block")
    computation = choose_computation(bench, "block", 1, "decode")
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


def test_an_input_is_called_one_and_left_out_of_what_the_parameters_gradients_cost(bench: Bench) -> None:
    finding = tape_of(bench, "block")
    inputs = [leaf for leaf in finding.leaves if leaf.kind == "input"]
    assert [leaf.name for leaf in inputs] == ["x"]
    assert {leaf.kind for leaf in finding.leaves} == {"input", "parameter"}
    assert finding.grad_bytes == sum(FLOATS * p.numel() for p in bench.model.blocks[0].parameters())
    assert "an input is a leaf here only" in shown(finding)


def test_the_peak_is_the_largest_running_sum_of_the_hosts_memory_events() -> None:
    def event(at: float, size: int, device: int = 0) -> dict[str, Any]:
        return {"name": "[memory]", "ts": at, "args": {"Bytes": size, "Device Type": device}}

    events = [event(3, -100), event(1, 100), event(4, 70), event(2, 50), event(2.5, 1000, device=1)]
    peak = peak_of_events([*events, {"name": "aten::mm", "ts": 0}])
    assert (peak.peak_bytes, peak.allocations, peak.allocated_bytes) == (150, 3, 220)


def test_no_expression_beyond_the_menu_is_evaluated_unless_its_process_allows_it(bench: Bench) -> None:
    with pytest.raises(StudyError, match="try one of block, step, matmul"):
        tape_of(bench, "x * x")


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').getcwd()",
        "x.__class__",
        "F.torch",
        "F._verify_batch_size",
        "(lambda: x)()",
        "y * x",
        "x @",
        "[row for row in x]",
        "x.exp().add_(1)",
        "x.shape",
        "x.detach()",
        "x @ b.view(3, 3)",
    ],
)
def test_an_expression_that_cannot_work_is_refused(bench: Bench, expression: str) -> None:
    with pytest.raises(StudyError) as refused:
        tape_of(bench, expression)
    assert refused.value.param == "expression"


def test_a_terminal_shows_nodes_leaves_and_every_mode(of_step: TapeFinding) -> None:
    text = shown(of_step)
    for word in (*PLAIN, "compiled", "EmbeddingBackward0", "blocks.0.attention.output.weight"):
        assert word in text


@pytest.mark.parametrize("expression", [*TAPE_EXPRESSIONS, "block", "step"])
def test_with_grad_mode_off_the_same_operators_run_and_the_tape_is_empty(
    bench: Bench, expression: str
) -> None:
    finding = tape_of(bench, expression)
    assert [run.grad for run in finding.untaped] == ["no_grad", "inference_mode"]
    for run in finding.untaped:
        assert [one.operator for one in run.forward] == [one.operator for one in finding.forward]
        assert not run.has_grad_fn
        assert (run.held.tensors, run.held.storage_bytes) == (0, 0)
        assert all(one.node is None for one in run.forward)
