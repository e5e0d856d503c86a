"""What is read of a call: its line, its device work, the waits that CUDA reports, generated code, samples."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from service.anatomy.operators import calls
from service.anatomy.operators.compiled import fused_kernels
from service.anatomy.operators.study import summary
from service.measure.cpu_sampler import Place
from service.statistics.intervals import Interval
from service.step.trace import ProfiledStep

NOTICE = (
    "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
)
WAIT = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:150.)"


CUDA = torch.device("cuda")


def test_a_step_has_as_many_waits_as_it_makes_and_the_modes_own_notice_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def set_mode(mode: int | str) -> None:
        seen.append(f"mode {mode}")
        warnings.warn(NOTICE, stacklevel=1)

    def call() -> None:
        seen.append("call")
        for _ in range(2):
            warnings.warn(WAIT, stacklevel=1)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    bench: Any = SimpleNamespace(device=CUDA, synchronise=lambda: seen.append("wait"))
    case: Any = SimpleNamespace(call=call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = calls.reported_waits(bench, case)
    assert ["test_calls.py" in line for line in lines] == [True, True]
    assert seen == ["wait", "mode warn", "call", "mode 0"]


def test_the_kernel_time_of_several_steps_has_an_interval_of_those_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = [3e-3, 1e-3, None, 2e-3, 4e-3, 5e-3, 7e-3, 6e-3]
    steps = [ProfiledStep(3, kernel_seconds=one) for one in seconds]
    monkeypatch.setattr(calls, "profile_steps", lambda *_: steps)
    monkeypatch.setattr(calls, "attach_profiler", lambda _: None)
    bench: Any = SimpleNamespace(device=CUDA, synchronise=lambda: None)
    case: Any = SimpleNamespace(step=None, arguments=None)
    work = calls.device_work(bench, case)
    assert work is not None
    assert work.kernel_seconds == Interval(4e-3, 1e-3, 7e-3, 7)
    assert work.step.kernel_seconds == 4e-3


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
        return [(one.name, one.kind, one.operators, one.calls) for one in fused_kernels(code)]

    assert listed(PYTHON) == [
        ("cpp_fused_add_mul_0", "generated", (), 2),
        ("aten::mm", "library", ("aten::add", "aten::mm"), 1),
        ("triton_red_fused_relu_sum_1", "generated", ("aten::relu", "aten::sum"), 1),
        ("aten::sort", "library", ("aten::sort",), 1),
    ]
    assert listed(CPP) == [
        ("aten::mm", "library", ("aten::mul", "aten::mm"), 1),
        ("cpp_fused_mul_silu_split_3", "generated", (), 1),
    ]


def test_native_samples_are_counted_by_function_and_classed_by_rule() -> None:
    product = Place("kernel", "mkl_blas_sgemv", "/lib/libtorch_cpu.so")
    python = Place("host", "_PyEval_EvalFrameDefault", "/lib/libpython3.so")
    unknown = Place("unclassified", "work", "/lib/libelse.so")
    found = summary([product, product, python, product, product, product, python, unknown])
    assert found.reason is None
    assert (found.sides.kernel, found.sides.host, found.sides.unclassified) == (5, 2, 1)
    assert [(s.symbol, s.side, s.rule, s.share) for s in found.symbols] == [
        ("mkl_blas_sgemv", "kernel", "matrix products", 5 / 8),
        ("_PyEval_EvalFrameDefault", "host", "Python", 2 / 8),
        ("work", "unclassified", "anything else", 1 / 8),
    ]
