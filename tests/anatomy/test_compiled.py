"""The compiler's output for a step, and the step on its way down: on small recordings and a small model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from service.anatomy.common import StudyError
from service.anatomy.operators import compiled as lowered
from service.anatomy.operators.study import summary
from service.measure.cases import Bench
from service.measure.cpu_sampler import Place
from tests.support.small_models import quiet

pytestmark = pytest.mark.compiles

PYTHON = """
cpp_fused_add_mul_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0)
{
}
''')
# Topologically Sorted Source Nodes: [a, b], Original ATen: [aten.relu, aten.sum]
triton_red_fused_relu_sum_1 = async_compile.triton('triton_red_fused_relu_sum_1', '''
''')
def call(self, args):
        cpp_fused_add_mul_0(arg0_1, buf0)
        # Topologically Sorted Source Nodes: [x, linear], Original ATen: [aten.add, aten.mm]
        extern_kernels.mm(buf0, arg1_1, out=buf1)
        cpp_fused_add_mul_0(buf1, buf2)
        triton_red_fused_relu_sum_1.run(buf2, buf3, 4, 8, stream=stream0)
        # Topologically Sorted Source Nodes: [y], Original ATen: [aten.sort]
        buf4 = torch.ops.aten.sort.stable(buf3, stable=False)
        assert_size_stride(buf4, (4, ), (1, ), 'torch.ops.aten.sort.stable')
"""

CPP = """
extern "C"  void  cpp_fused_mul_silu_split_3(const float* in_ptr0,
                       float* out_ptr0);
void inductor_entry_impl(AtenTensorHandle* input_handles, AtenTensorHandle* output_handles) {
    // Topologically Sorted Source Nodes: [rms, linear], Original ATen: [aten.mul, aten.mm]
    static constexpr int64_t int_array_5[] = {192L, 320L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(buf2, buf1, wrap(reinterpret(arg7_1))));
    cpp_fused_mul_silu_split_3((const float*)(buf17.data_ptr()), (float*)(buf18.data_ptr()));
"""


def test_generated_code_lists_each_kernel_with_its_operators_and_calls() -> None:
    def listed(code: str) -> list[tuple[str, str, list[str], int]]:
        return [(one.name, one.kind, one.operators, one.calls) for one in lowered.fused_kernels(code)]

    assert listed(PYTHON) == [
        ("cpp_fused_add_mul_0", "generated", ["aten::add", "aten::mul"], 2),
        ("aten::mm", "library", ["aten::add", "aten::mm"], 1),
        ("triton_red_fused_relu_sum_1", "generated", ["aten::relu", "aten::sum"], 1),
        ("aten::sort", "library", ["aten::sort"], 1),
    ]
    assert listed(CPP) == [
        ("aten::mm", "library", ["aten::mul", "aten::mm"], 1),
        ("cpp_fused_mul_silu_split_3", "generated", ["aten::mul", "aten::silu", "aten::split"], 1),
    ]


def test_native_samples_are_counted_by_function_and_classed_by_rule() -> None:
    product = Place("kernel", "mkl_blas_sgemv", "/lib/libtorch_cpu.so")
    python = Place("host", "_PyEval_EvalFrameDefault", "/lib/libpython3.so")
    unknown = Place("unclassified", "work", "/lib/libelse.so")
    found = summary([product, product, python, product, product, product, python, unknown], steps=3)
    assert (found.steps, found.reason) == (3, None)
    assert found.kernel_share == pytest.approx(5 / 7)
    assert (found.sides.kernel, found.sides.host, found.sides.unclassified) == (5, 2, 1)
    assert [(s.symbol, s.side, s.rule, s.share) for s in found.symbols] == [
        ("mkl_blas_sgemv", "kernel", "matrix products", 5 / 8),
        ("_PyEval_EvalFrameDefault", "host", "Python", 2 / 8),
        ("work", "unclassified", "anything else", 1 / 8),
    ]


MULTIPLY = "aten::mul.Tensor"


@pytest.fixture(scope="module")
def compiled(bench: Bench) -> lowered.Lowering:
    """Traced, not compiled."""
    return lowered.read_lowering(
        bench, replace(bench.case("eager", 1), mode="compiled"), True, MULTIPLY, quiet
    )


@pytest.mark.parametrize("operator", [MULTIPLY, "aten::mm", "aten::linear", "aten::empty.memory_format"])
def test_a_dispatch_table_has_an_entry_for_every_line_of_torchs_dump(operator: str) -> None:
    found = lowered.read_dispatch_table(operator)
    lines = torch._C._dispatch_dump_table(operator).splitlines()
    assert [entry.key for entry in found.entries] == [line.partition(":")[0] for line in lines]
    for entry, line in zip(found.entries, lines, strict=True):
        assert entry.falls_through == ("fallthrough" in line)
        assert entry.place in line
        assert line.endswith(f"[{entry.kind}]")


def test_an_unknown_operator_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(StudyError, match=r"did you mean .*aten::mul") as refused:
        lowered.read_dispatch_table("aten::mull.Tensor")
    assert refused.value.param == "operator"


def test_in_core_aten_nothing_composite_and_no_write_in_place_is_left(compiled: lowered.Lowering) -> None:
    assert compiled.no_decomposition is None
    found = compiled.decomposition
    assert found is not None
    counts = {row.name: row for row in found.operators}
    assert counts["aten::linear"].before > 0 == counts["aten::linear"].after
    assert not [row.name for row in found.operators if row.after and row.name.partition(".")[0].endswith("_")]
    assert sum(row.before for row in found.operators) == found.before
    assert sum(row.after for row in found.operators) == found.after
    assert sum(row.after for row in found.operators if not row.core) == found.not_core


def test_a_model_that_cannot_be_exported_is_said_to_be_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("data-dependent")

    monkeypatch.setattr(lowered, "decompose", fails)
    found = lowered.read_lowering(bench, bench.case("eager", 1), False, MULTIPLY, quiet)
    assert found.decomposition is None
    assert "RuntimeError: data-dependent" in str(found.no_decomposition)
    assert found.graphs is None


def test_a_compiled_step_has_dynamos_graph_and_aotautograds(compiled: lowered.Lowering) -> None:
    assert compiled.graphs is not None
    assert [graph.stage for graph in compiled.graphs] == ["dynamo", "aot"]
    dynamo, aot = compiled.graphs
    assert "torch._C._nn.linear(" in dynamo.text or "linear(" in dynamo.text
    assert "torch.ops.aten.mm.default(" in aot.text
    assert aot.operations > dynamo.operations > 0
    for graph in compiled.graphs:
        assert "File: models/transformer.py:" in graph.text
        assert str(Path(__file__).parents[2]) not in graph.text  # no folder of this machine
