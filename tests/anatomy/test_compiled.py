"""The compiler's output for a step, and the step on its way down: on small recordings and a small model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from service.anatomy.operators import compiled as lowered
from service.anatomy.operators.study import summary
from service.measure.cases import Bench
from service.measure.cpu_sampler import Place

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
    def listed(code: str) -> list[tuple[str, str, tuple[str, ...], int]]:
        return [(one.name, one.kind, one.operators, one.calls) for one in lowered.fused_kernels(code)]

    assert listed(PYTHON) == [
        ("cpp_fused_add_mul_0", "generated", ("aten::add", "aten::mul"), 2),
        ("aten::mm", "library", ("aten::add", "aten::mm"), 1),
        ("triton_red_fused_relu_sum_1", "generated", ("aten::relu", "aten::sum"), 1),
        ("aten::sort", "library", ("aten::sort",), 1),
    ]
    assert listed(CPP) == [
        ("aten::mm", "library", ("aten::mul", "aten::mm"), 1),
        ("cpp_fused_mul_silu_split_3", "generated", ("aten::mul", "aten::silu", "aten::split"), 1),
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


def test_a_compiled_step_has_dynamos_graph_and_aotautograds(bench: Bench) -> None:
    dynamo, aot = lowered.graph_texts(bench, replace(bench.case("eager", 1), mode="compiled"))
    assert [dynamo.stage, aot.stage] == ["dynamo", "aot"]
    assert "linear(" in dynamo.text
    assert "torch.ops.aten.mm.default(" in aot.text
    assert aot.operations > dynamo.operations > 0
    for graph in (dynamo, aot):
        assert "File: models/transformer.py:" in graph.text
        assert str(Path(__file__).parents[2]) not in graph.text  # no folder of this machine
