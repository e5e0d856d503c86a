"""One operator's call: the keys that it visits are the dispatcher's, and its slices add up to their sum."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from launchbound import app
from service.anatomy import common, operator_call, studies
from service.anatomy.common import ATTACHED, StudyError
from service.anatomy.layers.variants import OPERATIONS, State, load_loops
from service.anatomy.operator_call import (
    COMPOSITE,
    DispatchedCall,
    OperatorCallArguments,
    OperatorCallFinding,
    ThreadKeys,
    dispatch_rows,
    dispatched,
    follow_call,
    key_set,
    keys_of,
    show,
)
from service.anatomy.operators.calls import is_composite
from service.measure.cases import Bench
from service.modes import GradMode
from service.study_names import OPERATOR_CALLS
from tests.anatomy.conftest import printed
from tests.support.small_models import quiet, small_bench

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
EXAMPLE = Path(__file__).parent / "operator_call_finding.json"
EXPRESSIONS = list(OPERATOR_CALLS.values())
GRADS: tuple[GradMode, ...] = ("enabled", "no_grad", "inference_mode")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    load_loops(str(tmp_path_factory.mktemp("loops")), quiet)
    with small_bench() as shared:
        yield shared


def follow(bench: Bench, **arguments: Any) -> OperatorCallFinding:
    return follow_call(bench, OperatorCallArguments(**{"size": 4, "rounds": 6, **arguments}), quiet)


@pytest.fixture(scope="module")
def finding(bench: Bench) -> OperatorCallFinding:
    return follow(bench, expression="torch.add(a, b)")


def test_a_profiler_that_ran_before_the_times_were_taken_is_noted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def attached() -> bool:
        order.append("noted")
        return True

    known = operator_call.time_operations
    timed = lambda *given: order.append("timed") or known(*given)  # noqa: E731
    monkeypatch.setattr(common, "profiler_attached", attached)
    monkeypatch.setattr(operator_call, "time_operations", timed)
    monkeypatch.setattr(operator_call, "attach_profiler", lambda _: order.append("attached"))
    assert ATTACHED in follow(bench, expression="torch.add(a, b)").notes
    assert order == ["noted", "timed", "attached"]


class SeenCalls(TorchDispatchMode):
    """Sees each call where its backend's kernel would run.

    Composite operators get here too under inference mode; `detach` is autograd's copy of what it saves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_composite(func.name()):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if func.name() != "aten::detach":
            self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@contextmanager
def overheard(operator: str) -> Iterator[list[str]]:
    """Kernels in Python for the operator's keys between autocast and backend: each notes its key and goes on.

    Where a key has no kernel, none is put there, or it would be visited for that reason.
    """
    noted: list[str] = []
    overload = torch.ops.aten
    for part in operator.removeprefix("aten::").split("."):
        overload = getattr(overload, part)
    overload = getattr(overload, "default", overload)

    def note(key: str, below: Any) -> Callable[..., Any]:
        def kernel(keys: Any, *arguments: Any) -> Any:
            noted.append(key)
            return overload.redispatch(keys & below, *arguments)

        return kernel

    lowered = {"AutogradCPU": torch._C._after_autograd_keyset,
               "ADInplaceOrView": torch._C._after_ADInplaceOrView_keyset}  # fmt: skip
    library = torch.library.Library("aten", "IMPL")
    try:
        for row in dispatch_rows(operator, keys_of([torch.ones(1)]), keys_of([])):
            if row.kind is not None and row.key in lowered:
                name = operator.removeprefix("aten::")
                library.impl(name, note(row.key, lowered[row.key]), row.key, with_keyset=True)
        yield noted
    finally:
        library._destroy()


def path_of(name: str, state: State, requires_grad: bool = True) -> tuple[list[DispatchedCall], SeenCalls]:
    """A call's entries into the dispatcher, and what a dispatch mode saw of the same call."""
    operation = OPERATIONS[name]
    tensors = operation.tensors(4, 4, CPU, torch.float32, requires_grad)
    call = eval(f"lambda: {operation.statement}", operation.names(tensors))
    with state.entered(CPU):
        thread = ThreadKeys.now()
        calls = dispatched(call, key_set(keys_of(tensors), thread.included) - thread.excluded)
        with SeenCalls() as below:
            call()
    return calls, below


def visited(calls: list[DispatchedCall]) -> list[tuple[str, list[str]]]:
    return [(call.operator, [key.key for key in call.keys]) for call in calls if call.keys is not None]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("grad", GRADS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_dispatch_mode_sees_the_calls_that_end_in_a_backend(
    name: str, grad: GradMode, autocast: bool
) -> None:
    calls, below = path_of(name, State(grad, autocast))
    ended = [call.operator for call in calls if call.keys and call.keys[-1].kind != COMPOSITE]
    through_autocast = {call.operator for call in calls if call.keys and call.keys[-1].key == "AutocastCPU"}
    assert [operator for operator in ended if operator not in through_autocast] == [
        operator for operator in below.seen if operator not in through_autocast
    ]
    assert below.seen


@pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("grad", GRADS)
@pytest.mark.parametrize("name", ["add", "exp", "relu", "sum", "transpose"])
def test_kernels_put_at_the_keys_between_are_run_in_the_order_that_was_found(
    name: str, grad: GradMode, requires_grad: bool
) -> None:
    state = State(grad)
    calls, _ = path_of(name, state, requires_grad)
    operation = OPERATIONS[name]
    tensors = operation.tensors(4, 4, CPU, torch.float32, requires_grad)
    with overheard(calls[0].operator) as noted, state.entered(CPU):
        eval(operation.statement, operation.names(tensors))
    assert [*noted, "CPU"] == [key.key for key in calls[0].keys or ()]


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_autocast_key_is_visited_where_autocast_has_a_rule(name: str) -> None:
    calls, _ = path_of(name, State("no_grad", autocast=True))
    found = [key for call in calls for key in call.keys or () if key.key == "AutocastCPU"]
    assert [key.kind for key in found] == (["kernel"] if OPERATIONS[name].lowered else [])


def test_autocast_is_above_autograd_and_calls_the_operator_again() -> None:
    calls, _ = path_of("matmul", State("enabled", autocast=True))
    assert (calls[0].operator, calls[0].depth) == ("aten::matmul", 0)
    assert [key.key for key in calls[0].keys or ()] == ["AutocastCPU"]
    again = [call for call in calls if call.operator == "aten::matmul"][1]
    assert again.depth == 1
    assert [(key.key, key.kind) for key in again.keys or ()] == [("AutogradCPU", "math kernel")]
    assert ("aten::mm", ["AutogradCPU", "CPU"]) in visited(calls)


def test_the_running_sum_ends_with_the_sum(finding: OperatorCallFinding) -> None:
    running = [each.running_microseconds for each in finding.slices if each.running_microseconds]
    assert running[-1] == finding.sum_microseconds
    assert running[0] == finding.slices[0].microseconds
    assert finding.whole_microseconds.value > 0


def test_the_keys_of_the_call_are_those_of_its_tensors_and_thread(finding: OperatorCallFinding) -> None:
    assert [tensor.name for tensor in finding.arguments] == ["x", "y"]
    of_tensors = {key for tensor in finding.arguments for key in tensor.keys}
    assert set(finding.key_set) == (of_tensors | set(finding.included)) - set(finding.excluded)
    assert "AutocastCPU" in of_tensors - set(finding.key_set)
    rows = {row.key: row for row in finding.table}
    assert rows["AutogradCPU"].in_key_set
    assert not rows["AutocastCPU"].in_key_set
    assert rows["ADInplaceOrView"].kind is None
    assert "RegisterCPU" in (rows["CPU"].source or "")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"autocast": True}, "falls through"),
        ({"requires_grad": False}, "no node is recorded"),
        ({"grad": "no_grad"}, "visits the autograd keys"),
        ({"expression": "torch.softmax(x, -1)"}, "composite"),
    ],
)
def test_what_the_slices_do_not_say_stands_in_the_notes(
    bench: Bench, finding: OperatorCallFinding, arguments: dict[str, Any], word: str
) -> None:
    assert not any(word in note for note in finding.notes)
    assert any(word in note for note in follow(bench, **arguments).notes)


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"expression": "torch.load(x)"}, "expression"),
        ({"autocast": True, "dtype": "bfloat16"}, "dtype"),
    ],
)
def test_what_cannot_be_followed_is_refused(bench: Bench, arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(StudyError) as refused:
        follow(bench, **arguments)
    assert (refused.value.type, refused.value.param) == ("invalid_request", param)


def test_the_known_calls_are_those_that_can_be_timed() -> None:
    assert OPERATIONS.keys() == OPERATOR_CALLS.keys()


def test_the_committed_example_has_the_form_of_a_finding(finding: OperatorCallFinding) -> None:
    example = json.loads(EXAMPLE.read_text())
    decoded = msgspec.convert(example, OperatorCallFinding)
    assert json.loads(msgspec.json.encode(decoded)) == example
    made = json.loads(msgspec.json.encode(finding))
    assert made.keys() == example.keys()
    assert [each["name"] for each in made["slices"]] == [each["name"] for each in example["slices"]]
    assert made["calls"] == example["calls"]


def test_a_terminal_shows_keys_calls_slices_and_methods(finding: OperatorCallFinding) -> None:
    out = printed(show, finding, width=200)
    for word in ("torch.add(x, y)", "AutogradCPU (autograd kernel) → CPU (kernel)", "up to here", "not here"):
        assert word in out


def test_the_command_line_takes_a_call_and_its_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(studies, "main", lambda *given: seen.append(given))
    ended = CliRunner().invoke(app, ["anatomy", "--op", "torch.mul(a, b)", "--set", "grad=no_grad"])
    assert ended.exit_code == 0, ended.output
    given = {name: value for name, value in seen[0][2].items() if value is not None}
    assert (seen[0][1], given) == ("operator", {"expression": "torch.mul(a, b)", "grad": "no_grad"})
    both = CliRunner().invoke(app, ["anatomy", "--op", "torch.mul(a, b)", "--layers"])
    assert both.exit_code == 2
    assert "--layers or --op" in both.output
