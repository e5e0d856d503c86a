"""The operator list agrees with an independent dispatch mode, the profiler and torch's explanation."""

from __future__ import annotations

import linecache
import math
import sys
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.autograd.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

from models.transformer import Transformer
from service.anatomy.common import StudyError
from service.anatomy.operators.calls import OperatorRecorder, record, thread_keys
from service.anatomy.operators.compiled import entries, trace
from service.anatomy.operators.show import show
from service.anatomy.operators.study import (
    DispatchShare,
    OperatorsArguments,
    OperatorsFinding,
    OperatorTimes,
    copies,
    list_operators,
    operator_rows,
    syncs,
    time_operators,
)
from service.measure.cases import Bench, Case
from service.measure.cpu_sampler import CpuSampler, SamplerError
from service.measure.step_costs import DispatchSplit
from service.modes import MODES, Effect
from service.records import Phase
from service.statistics.intervals import Interval, median_interval
from service.step.callables import Step, build_step
from tests.anatomy.conftest import printed
from tests.support.small_models import CONFIG, PLAIN, quiet

pytestmark = pytest.mark.compiles

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
MODE_NAMES = [*PLAIN, "compiled"]
ONE = Interval(1.0, 0.9, 1.1, 11)


@pytest.fixture(scope="module")
def findings(bench: Bench) -> dict[str, OperatorsFinding]:
    """Each mode's anatomy of a decode step of two sequences."""
    return {
        mode: list_operators(bench, OperatorsArguments(mode=mode, batch_size=2, native=False), quiet)
        for mode in MODE_NAMES
    }


class CallLister(TorchDispatchMode):
    """An independent dispatch mode that lists calls below autograd, without those that it causes itself.

    Under a mode `reshape` calls `view` in place of `_reshape_alias`, and autograd's shallow copy of a saved
    output becomes a `detach` that no line of the model calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE):
            with self:
                taken_apart = func.decompose(*args, **kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        if str(func) != "aten.detach.default" or "detach" in model_line():
            self.names.append(str(func))
        return func(*args, **kwargs)


def model_line() -> str:
    frame = sys._getframe(1)
    while frame.f_globals["__name__"].partition(".")[0] == "torch" or frame.f_code.co_filename == __file__:
        assert frame.f_back is not None
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def calls_of(case: Case) -> list[str]:
    with CallLister() as lister:
        case.call()
    return lister.names


def listed(names: list[tuple[str, str]]) -> list[str]:
    joined = [f"{name.replace('::', '.')}.{overload or 'default'}" for name, overload in names]
    return [name.replace("aten._reshape_alias.", "aten.view.") for name in joined]


# ---------------------------------------------------------------- the list


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_the_operators_are_those_of_an_independent_dispatch_mode_in_count_and_order(
    bench: Bench, findings: dict[str, OperatorsFinding], mode: str
) -> None:
    names = calls_of(bench.case(mode, 2))
    assert names
    assert listed([(row.name, row.overload) for row in findings[mode].operators]) == names


@pytest.mark.parametrize("mode", PLAIN)
def test_the_operators_of_a_prefill_chunk_are_those_of_an_independent_dispatch_mode(
    bench: Bench, mode: str
) -> None:
    case = bench.case(mode, 1, "prefill")
    calls = record(case, 1)[0].calls
    assert listed([(call.name, call.overload) for call in calls]) == calls_of(case)


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_every_operator_has_its_keys_its_line_and_strides_for_its_shapes(
    findings: dict[str, OperatorsFinding], mode: str
) -> None:
    for row in findings[mode].operators:
        assert row.keys
        assert row.line
        assert [len(shape) for shape in row.shapes] == [len(strides) for strides in row.strides]


def test_operators_pass_autograds_keys_in_eager_and_no_grad_and_none_in_inference_mode(
    findings: dict[str, OperatorsFinding],
) -> None:
    for mode in ("eager", "no_grad"):
        assert all("AutogradCPU" in (row.keys or []) for row in findings[mode].operators if row.shapes)
    keys = {key for row in findings["inference_mode"].operators for key in row.keys or []}
    assert not any(key.startswith("Autograd") for key in keys)
    assert "CPU" in keys


def test_a_new_tensors_backend_is_chosen_by_its_options(bench: Bench) -> None:
    thread = thread_keys(MODES["no_grad"], bench.device, bench.precision)
    with torch.no_grad(), OperatorRecorder(thread) as recorder:
        torch.scalar_tensor(1.0)
    assert [(one.schema_name, one.keys) for one in recorder.seen] == [
        ("aten::scalar_tensor", ["BackendSelect", "CPU"])
    ]


def test_lines_of_a_plain_mode_are_the_models_and_of_a_compiled_one_the_generated_codes(
    findings: dict[str, OperatorsFinding],
) -> None:
    models = {(row.line or "").partition(":")[0] for row in findings["no_grad"].operators}
    assert models == {"models/transformer.py"}
    assert {(row.line or "").partition(":")[0] for row in findings["compiled"].operators} == {
        "generated code"
    }


# ---------------------------------------------------------------- copies, waits, launches


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_copies_are_every_copy_that_the_profiler_saw(
    bench: Bench, findings: dict[str, OperatorsFinding], mode: str
) -> None:
    case = bench.case(mode, 2)
    with profile() as session:
        case.call()
    seen = [event for event in session.function_events or [] if event.name == "aten::copy_"]
    assert len(findings[mode].copies) == len(seen) > 0


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
    rows = operator_rows(
        calls,
        seen.seen,
        OperatorTimes(median_interval([1.0]), median_interval([1.0]), 0.0, nothing, nothing, 0.0),
    )
    return copies(calls, rows), syncs(rows, seen.seen)


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


def test_a_cpu_has_no_launches_with_the_reason(findings: dict[str, OperatorsFinding]) -> None:
    for finding in findings.values():
        assert (finding.kernels, finding.launches) == (None, None)
        assert "CPU" in (finding.no_device or "")


# ---------------------------------------------------------------- compiled


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


class Broken:
    """The attributes of a bench that tracing uses."""

    def __init__(self, like: Bench) -> None:
        self.model = Breaking()
        self.precision = like.precision


def test_graphs_and_breaks_are_those_of_torchs_own_explanation(bench: Bench) -> None:
    case: Any = step_case(bench, lambda *arguments: arguments[:2])
    broken: Any = Broken(bench)
    found = trace(broken, case)
    plain = Effect("plain")
    mode = replace(MODES["inference_mode"], cpu=plain, cuda=plain)
    explained = torch._dynamo.explain(build_step(mode, broken.model))(*case.buffers.arguments("decode"))
    bench.forget()
    assert (found.graphs, found.graph_break_count) == (explained.graph_count, explained.graph_break_count)
    assert found.graph_break_count == 2
    assert [each.reason for each in found.graph_breaks] == [r.reason.strip() for r in explained.break_reasons]
    first = Breaking.forward.__code__.co_firstlineno
    lines = [f"anatomy/test_operators.py:{first + 2}", f"anatomy/test_operators.py:{first + 4}"]
    assert [each.line for each in found.graph_breaks] == lines


def test_the_served_model_is_one_graph_without_breaks_or_recompiles(
    findings: dict[str, OperatorsFinding],
) -> None:
    finding = findings["compiled"]
    assert (finding.graphs, finding.graph_break_count, finding.graph_breaks) == (1, 0, [])
    assert finding.recompiles == 0
    assert findings["eager"].graphs is None


def test_a_study_of_a_compiled_mode_leaves_its_compiled_entry_as_it_was(bench: Bench) -> None:
    case = bench.case("compiled", 2)
    list_operators(bench, OperatorsArguments(mode="compiled", batch_size=2, native=False), quiet)
    before = dict(counters["stats"])
    case.call()
    assert len(entries(case.step)) == 1
    assert dict(counters["stats"]) == before


def test_every_generated_kernel_is_listed_with_its_operators(
    findings: dict[str, OperatorsFinding],
) -> None:
    finding = findings["compiled"]
    kernels = finding.fused_kernels or []
    code = finding.generated_code or ""
    defined = {line.split(" = ")[0] for line in code.splitlines() if "= async_compile.cpp_pybinding" in line}
    assert {kernel.name for kernel in kernels if kernel.kind == "generated"} == defined
    assert all(kernel.operators for kernel in kernels)
    products = sum(kernel.calls for kernel in kernels if kernel.name in {"aten::mm", "aten::addmm"})
    assert products == sum(row.name in {"aten::mm", "aten::addmm"} for row in finding.operators)


def test_guards_name_what_they_check_and_the_line_they_are_for(
    findings: dict[str, OperatorsFinding],
) -> None:
    guards = findings["compiled"].guards or []
    tensors = [guard for guard in guards if guard.kind == "TENSOR_MATCH"]
    weights = sum(1 for _ in Transformer(CONFIG, 2).parameters())
    assert len(tensors) > weights
    assert any((guard.line or "").startswith("models/transformer.py:") for guard in tensors)


# ---------------------------------------------------------------- answers and refusals


@pytest.mark.parametrize(
    ("arguments", "type", "param"),
    [
        ({"mode": "fast"}, "unknown_mode", "mode"),
        ({"batch_size": 3}, "invalid_request", "batch_size"),
        ({"batch_size": 0}, "invalid_request", "batch_size"),
    ],
)
def test_a_mode_or_batch_that_is_not_configured_is_refused_by_name(
    bench: Bench, arguments: dict[str, Any], type: str, param: str
) -> None:
    with pytest.raises(StudyError) as refused:
        list_operators(bench, OperatorsArguments(**arguments), quiet)
    assert (refused.value.type, refused.value.param) == (type, param)


def test_the_answer_has_the_fields_of_the_contract(findings: dict[str, OperatorsFinding]) -> None:
    answer = msgspec.json.decode(msgspec.json.encode(findings["compiled"]))
    for field in ("kernels", "launches", "syncs", "copies", "graphs", "graph_breaks", "guards", "recompiles"):
        assert field in answer
    assert isinstance(answer["generated_code"], str)
    assert {"name", "overload", "keys", "shapes", "strides", "host_seconds"} <= answer["operators"][0].keys()


class Clock:
    """Moves on by `step_seconds` whenever it is read."""

    def __init__(self, step_seconds: float) -> None:
        self.now = 0.0
        self._step = step_seconds

    def __call__(self) -> float:
        self.now += self._step
        return self.now


@pytest.mark.parametrize(("seconds", "samples"), [(0.0, 40), (0.25, 15), (2.0, 6)])
def test_timing_stops_at_its_budget_and_never_before_what_an_interval_needs(
    bench: Bench, seconds: float, samples: int
) -> None:
    case = bench.case("inference_mode", 1)
    calls = record(case, 1)[0].calls
    times = time_operators(bench, case, calls, quiet, Clock(seconds))
    assert (times.plain.samples, times.profiled.samples) == (samples, samples)
    assert math.isfinite(times.plain.low)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_native_functions_and_dispatch_are_of_the_same_samples(bench: Bench, phase: Phase) -> None:
    found = list_operators(bench, OperatorsArguments(mode="no_grad", phase=phase), quiet)
    assert found.native is not None
    assert found.dispatch is not None
    assert found.native.sides.total == found.native.samples
    assert found.dispatch.share == pytest.approx(1 - (found.native.kernel_share or 0.0))


def test_where_the_thread_cannot_be_sampled_dispatch_is_absent_with_the_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Bench) -> CpuSampler:
        raise SamplerError("the system gives this thread no timer")

    monkeypatch.setattr(Bench, "sampler", property(refused))
    found = list_operators(bench, OperatorsArguments(mode="no_grad", native=False), quiet)
    assert found.dispatch is None
    assert "dispatch is unknown: the system gives this thread no timer" in found.notes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_head_says_where_dispatch_and_kernel_are_from(
    findings: dict[str, OperatorsFinding], device: str
) -> None:
    found = findings["eager"]
    if device == "cuda":
        split = DispatchSplit(ONE, Interval(1e-3, 9e-4, 1.1e-3, 8), "measured")
        found = msgspec.structs.replace(found, device=device, dispatch=DispatchShare.of(split))
    text = printed(show, found, width=400)
    on_cpu, on_cuda = ("one step", "(sampled)"), ("(measured; they overlap)", "call returns after")
    expected, other = (on_cpu, on_cuda) if device == "cpu" else (on_cuda, on_cpu)
    assert all(word in text for word in expected)
    assert not any(word in text for word in other)


def test_dispatch_and_kernel_make_the_step(findings: dict[str, OperatorsFinding]) -> None:
    for finding in findings.values():
        assert finding.dispatch is not None
        parts = finding.dispatch.seconds + finding.dispatch.kernel_seconds
        assert parts == pytest.approx(finding.step_seconds.median_seconds)
        assert finding.dispatch.source == "sampled"


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
        list_operators(bench, OperatorsArguments(mode=mode, batch_size=2), quiet)
    assert refused.value.param == "mode"
