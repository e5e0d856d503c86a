"""The operator list agrees with an independent dispatch mode, the profiler and torch's explanation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile

from models.transformer import Transformer
from service.anatomy.common import StudyError
from service.anatomy.operators import study
from service.anatomy.operators.calls import OperatorRecorder, record, thread_keys
from service.anatomy.operators.compiled import trace
from service.measure.cases import Bench, Case
from service.modes import MODES, Effect
from service.statistics.intervals import median_interval
from service.step.callables import Step, build_step
from tests.anatomy.conftest import CallLister
from tests.support.small_models import CONFIG, PLAIN, quiet

pytestmark = pytest.mark.compiles
MODE_NAMES = [*PLAIN, "compiled"]


@pytest.fixture(scope="module")
def findings(bench: Bench) -> dict[str, study.OperatorsFinding]:
    """Each mode's anatomy of a decode step of two sequences."""
    return {
        mode: study.list_operators(bench, study.OperatorsArguments(mode=mode, batch_size=2), quiet)
        for mode in MODE_NAMES
    }


def calls_of(case: Case) -> list[str]:
    with CallLister() as lister:
        case.call()
    return lister.names


def listed(names: Iterable[str]) -> list[str]:
    return [name.removesuffix(".default").replace("aten::_reshape_alias", "aten::view") for name in names]


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_operators_and_copies_are_those_that_an_independent_dispatch_mode_and_the_profiler_see(
    bench: Bench, findings: dict[str, study.OperatorsFinding], mode: str
) -> None:
    case, found = bench.case(mode, 2), findings[mode]
    names = calls_of(case)
    assert names
    assert listed(f"{row.name}.{row.overload}" for row in found.operators) == names
    files = {(row.line or "").partition(":")[0] for row in found.operators}
    detach = {"service/step/callables.py"} if mode == "eager" else set()  # which frees the tape
    assert files == {"generated code" if mode == "compiled" else "models/transformer.py"} | detach
    for row in found.operators:
        assert row.keys
        assert [len(shape) for shape in row.shapes] == [len(strides) for strides in row.strides]
    with profile() as session:
        case.call()
    seen = [event for event in session.function_events or [] if event.name == "aten::copy_"]
    assert len(found.copies) == len(seen) > 0


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_dispatch_and_kernel_make_the_step_and_a_cpu_has_no_launches(
    findings: dict[str, study.OperatorsFinding], mode: str
) -> None:
    found = findings[mode]
    assert found.dispatch_seconds is not None
    assert found.kernel_seconds is not None
    parts = found.dispatch_seconds.value + found.kernel_seconds.value
    assert parts == pytest.approx(found.step_seconds.median_seconds)
    assert found.kernel_share == pytest.approx(found.kernel_seconds.value / parts)
    assert (found.kernels, found.launches) == (None, None)
    assert "CPU" in (found.no_device or "")


def test_operators_pass_autograds_keys_in_eager_and_no_grad_and_none_in_inference_mode(
    findings: dict[str, study.OperatorsFinding],
) -> None:
    for mode in ("eager", "no_grad"):
        assert all("AutogradCPU" in (row.keys or []) for row in findings[mode].operators if row.shapes)
    keys = {key for row in findings["inference_mode"].operators for key in row.keys or []}
    assert not any(key.startswith("Autograd") for key in keys)
    assert "CPU" in keys


def step_case(bench: Bench, step: Step) -> Case:
    return Case("inference_mode", "decode", step, bench.buffers[2])


def taken_apart(bench: Bench, step: Step) -> tuple[list[Any], list[Any]]:
    """Copies and sync points of a step of a test's own."""
    case = step_case(bench, step)
    calls = record(case, 1, operands=True)[0].calls
    thread = thread_keys(MODES["no_grad"], bench.device, bench.precision)
    with OperatorRecorder(thread) as seen:
        case.call()
    nothing = [0.0] * len(calls)
    rows = study.operator_rows(
        calls,
        seen.seen,
        study.OperatorTimes(median_interval([1.0]), median_interval([1.0]), 0.0, nothing, nothing),
    )
    return study.copies(calls, rows), study.syncs(rows, seen.seen)


def test_a_hidden_copy_is_shown_with_its_bytes_and_the_line_that_caused_it(bench: Bench) -> None:
    def step(tokens: Tensor, positions: Tensor, last: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        keys = cache[0][0]
        keys.transpose(1, 2).contiguous()
        return tokens, last

    line = step.__code__.co_firstlineno + 2
    found, _ = taken_apart(bench, step)
    size = bench.case("eager", 2).arguments[3][0][0].nbytes
    assert [(copy.name, copy.bytes, copy.line) for copy in found] == [
        ("aten::clone", size, f"anatomy/test_operators.py:{line}")
    ]


def test_a_value_that_the_host_reads_is_a_sync_point_with_its_line(bench: Bench) -> None:
    def step(tokens: Tensor, positions: Tensor, last: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        if positions[0].item() < 0:
            tokens = tokens + 1
        return tokens, last

    _, waits = taken_apart(bench, step)
    line = step.__code__.co_firstlineno + 1
    assert [(wait.kind, wait.line) for wait in waits] == [("item", f"anatomy/test_operators.py:{line}")]


class Breaking(nn.Module):
    """A step with two breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        logits = tokens * self.weight
        torch._dynamo.graph_break()
        logits = logits + 1
        logits.sum().item()  # not print, which Ray replaces in a process that has imported it
        return logits * 2, last


def test_graphs_and_breaks_are_those_of_torchs_own_explanation(bench: Bench) -> None:
    case: Any = step_case(bench, lambda *arguments: arguments[:2])
    broken = Breaking()
    made: Any = SimpleNamespace(build=partial(build_step, model=broken, precision=bench.precision))
    found = trace(made, case)
    plain = Effect("plain")
    mode = replace(MODES["inference_mode"], cpu=plain, cuda=plain)
    explained = torch._dynamo.explain(build_step(mode, broken))(*case.buffers.arguments("decode"))
    bench.forget()
    graphs, breaks = found["graphs"], found["graph_breaks"]
    assert (graphs, found["graph_break_count"]) == (explained.graph_count, explained.graph_break_count)
    assert found["graph_break_count"] == 2
    assert [each.reason for each in breaks] == [r.reason.strip() for r in explained.break_reasons]
    first = Breaking.forward.__code__.co_firstlineno
    lines = [f"anatomy/test_operators.py:{first + 2}", f"anatomy/test_operators.py:{first + 4}"]
    assert [each.line for each in breaks] == lines


def test_the_served_model_is_one_graph_whose_guards_name_what_they_check_and_their_line(
    findings: dict[str, study.OperatorsFinding],
) -> None:
    found = findings["compiled"]
    assert (found.graphs, found.graph_break_count, found.graph_breaks) == (1, 0, [])
    assert found.recompiles == 0
    assert findings["eager"].graphs is None
    guards = found.guards or []
    tensors = [guard for guard in guards if guard.kind == "TENSOR_MATCH"]
    weights = sum(1 for _ in Transformer(CONFIG, 2).parameters())
    assert len(tensors) > weights
    assert any((guard.line or "").startswith("models/transformer.py:") for guard in tensors)


def test_where_the_thread_cannot_be_sampled_dispatch_is_absent_with_the_reason(
    bench: Bench, unsampled: str
) -> None:
    found = study.list_operators(bench, study.OperatorsArguments(mode="no_grad"), quiet)
    assert found.dispatch_seconds is None
    assert f"dispatch is unknown: {unsampled}" in found.notes


@pytest.mark.parametrize(
    ("mode", "instead"), [("aot-inductor", "try compiled"), ("cuda-graph", "try inference_mode, whose")]
)
def test_a_step_that_is_one_native_call_is_refused_with_the_mode_to_take_instead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, mode: str, instead: str
) -> None:
    row = MODES["cuda-graph"]
    monkeypatch.setitem(MODES, "cuda-graph", replace(row, cpu=row.cuda))
    monkeypatch.setattr(bench, "modes", [*bench.modes, mode])
    with pytest.raises(StudyError, match=f"lists no operators: {instead}") as refused:
        study.list_operators(bench, study.OperatorsArguments(mode=mode, batch_size=2), quiet)
    assert refused.value.param == "mode"
