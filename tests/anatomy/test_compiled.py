"""Reading generated code, guards and native samples, on small recordings; nothing is compiled here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from service.anatomy.operators.compiled import (
    FusedKernel,
    compiled_function,
    entries,
    fused_kernels,
    fused_operators,
    read_guards,
)
from service.anatomy.operators.study import sample_native, summary
from service.measure.cpu_sampler import CpuSampler, Place, SamplerError

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

TREE = """
TREE_GUARD_MANAGER:
+- RootGuardManager
| +- DEFAULT_DEVICE: CURRENT_DEVICE == None    # _dynamo/output_graph.py:1122 in init_ambient_guards
| +- GuardManager: source=L['x'], accessed_by=FrameLocalsGuardAccessor(key='x'), type=<class 'int'>
| | +- LENGTH_CHECK: len(L['x']) == 6    # for block in blocks:  # some/models/transformer.py:173 in forward
| | +- NO_TENSOR_ALIASING
"""


def test_generated_python_lists_each_kernel_with_its_operators_and_calls() -> None:
    assert fused_kernels(PYTHON) == [
        FusedKernel(
            name="cpp_fused_add_mul_0", kind="generated", operators=["aten::add", "aten::mul"], calls=2
        ),
        FusedKernel(name="aten::mm", kind="library", operators=["aten::add", "aten::mm"], calls=1),
        FusedKernel(
            name="triton_red_fused_relu_sum_1",
            kind="generated",
            operators=["aten::relu", "aten::sum"],
            calls=1,
        ),
        FusedKernel(name="aten::sort", kind="library", operators=["aten::sort"], calls=1),
    ]


def test_generated_cpp_lists_each_kernel_with_its_operators_and_calls() -> None:
    found = [(kernel.name, kernel.operators, kernel.calls) for kernel in fused_kernels(CPP)]
    assert found == [
        ("aten::mm", ["aten::mul", "aten::mm"], 1),
        ("cpp_fused_mul_silu_split_3", ["aten::mul", "aten::silu", "aten::split"], 1),
    ]


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("cpp_fused_argmax_7", ["argmax"]),
        ("cpp_fused_index_index_put_mul_0", ["index", "index_put", "mul"]),
        ("triton_poi_fused__to_copy_add_12", ["_to_copy", "add"]),
        ("cpp_fused_split_split_with_sizes_1", ["split", "split_with_sizes"]),
        ("cpp_fused_no_such_operator_1", []),
        ("a_kernel", []),
    ],
)
def test_a_kernels_name_is_split_into_operators_of_aten(name: str, operators: list[str]) -> None:
    assert fused_operators(name) == tuple(f"aten::{operator}" for operator in operators)


def test_guards_are_the_leaves_of_the_tree() -> None:
    guards = read_guards(SimpleNamespace(guard_manager=TREE))
    assert [(guard.kind, guard.expression, guard.line) for guard in guards] == [
        ("DEFAULT_DEVICE", "CURRENT_DEVICE == None", "_dynamo/output_graph.py:1122"),
        ("LENGTH_CHECK", "len(L['x']) == 6", "models/transformer.py:173"),
    ]


def test_a_recompile_is_an_entry_more_and_an_uncompiled_step_has_none() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled: Any = torch.compile(double, backend="eager", dynamic=False)

    def step(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = compiled(x)
        return result

    found: Any = step
    step(torch.ones(2))
    assert (compiled_function(found), len(entries(found))) == (double, 1)
    step(torch.ones(3))
    assert len(entries(found)) == 2
    plain: Any = double
    assert entries(plain) == []


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


def test_where_the_thread_cannot_be_sampled_the_reason_is_given() -> None:
    class Unsampled:
        device = torch.device("cpu")

        @property
        def sampler(self) -> CpuSampler:
            raise SamplerError("the system forbids it")

    case: Any = SimpleNamespace(phase="decode", call=lambda: None)
    bench: Any = Unsampled()
    found = sample_native(bench, case, lambda _: None)
    assert (found.kernel_share, found.symbols, found.reason) == (None, [], "the system forbids it")
