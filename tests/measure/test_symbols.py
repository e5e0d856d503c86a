"""How samples are named and classed: what no rule knows is unclassified."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from service.measure import symbols
from service.measure.symbols import UNKNOWN, Mapping, Namer, _table, demangle, side_of
from service.step.compile_cache import keep_open

TORCH = "/site-packages/torch/lib/libtorch_cpu.so"
PYTHON = "/lib/libpython3.11.so.1.0"

KERNEL_SAMPLES = [
    ("mkl_blas_avx512_xsgemv", TORCH),
    ("mkl_blas_avx512_sgemm_scopy_right48_ea", TORCH),
    ("mkl_blas_avx512_sgemm_kernel_nocopy_NN_b1", TORCH),
    ("at::native::(anonymous namespace)::cpu_flash_attention<float, float, 32l, 512l, false>", TORCH),
    (
        "c10::function_ref<void (char**, long const*, long, long)>::callback_fn<at::native::AVX512::"
        "VectorizedLoop2d<at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)>>",
        TORCH,
    ),
    ("kernel", "/cache/ab/cldz37mw2hsrmid4ns5f4efiutywx4.main.so"),
    ("kernel._omp_fn.0", "/cache/ib/cib5difnrecxncnszy63.main.so"),
    ("cpp_fused_argmax_7", "/cache/ib/cib5difnrecxncnszy63.main.so"),
    (
        "void cpp_fused_mm_transpose_view_3_micro_gemm_kernel<8l, 48l, false, false>(float const*, long)",
        "/cache/sv/csv4xw24q2hp7jkpfcp5.main.so",
    ),
    ("__memmove_avx512_unaligned_erms", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    ("[unknown]", "//anon"),
    ("memcpy", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    ("[unknown]", "/usr/lib/x86_64-linux-gnu/libm.so.6"),
    ("float _igam_helper_fac<float>(float, float)", TORCH),
    ("float at::native::(anonymous namespace)::calc_polygamma<float>(float)", TORCH),
    ("at::internal::serial_for_each(c10::ArrayRef<long>, char**, unsigned long)", TORCH),
    ("void at::native::(anonymous namespace)::LayerNormKernelImplInternal<float, float>(long)", TORCH),
    ("at::native::(anonymous namespace)::copy_same_type_transpose_(at::Tensor&, at::Tensor const&)", TORCH),
    ("void at::native::(anonymous namespace)::apply_triu_tril_single<float>(float*, float*, bool)", TORCH),
    ("[unknown]", "/site-packages/torch/lib/libgomp.so.1"),
    ("gomp_team_barrier_wait_end", "/site-packages/torch.libs/libgomp-a34b3233.so.1.0.0"),
    ("__kmp_hardware_timestamp", "/usr/lib/x86_64-linux-gnu/libiomp5.so"),
    ("inner_thread", "/site-packages/torch/lib/libtorch_cpu.so"),
    ("sgemm_kernel_SKYLAKEX", "/usr/lib/libopenblas.so.0"),
    ("sbgemm_kernel_NEOVERSEN1", TORCH),
    ("sgemv_n_HASWELL", TORCH),
    ("gotoblas_kernel_of_another_name", "/usr/lib/aarch64-linux-gnu/libopenblas.so.0"),
    ("bli_sgemmsup_rv_zen_asm_6x16n", TORCH),
    ("xnn_f32_gemm_minmax_ukernel_4x16__avx2_broadcast", TORCH),
    ("_ZGVdN8v_expf", "/lib/x86_64-linux-gnu/libmvec.so.1"),
    ("arm_gemm::GemmInterleaved<arm_gemm::cls_a64_interleaved_bf16fp32_mmla_8x12>::execute", TORCH),
    ("a64_hybrid_fp32_mla_6x16", TORCH),
    ("kai_run_matmul_clamp_f32_qsi8d32p4x8_qsi4c32p4x8_16x4_neon_i8mm", TORCH),
    ("dnnl::impl::cpu::acl::acl_matmul_t::execute_forward", TORCH),
    ("Sleef_expf8_u10", TORCH),
    ("void at::native::AVX512::vectorized_inner_sum<float>(char**, long, long)", TORCH),
    ("at::native::cpublas::gemm_notrans_<float, float>(long, long, long, float, float const*)", TORCH),
    ("at::native::(anonymous namespace)::gelu_kernel_impl(at::TensorIteratorBase&)", TORCH),
    ("void at::native::(anonymous namespace)::cpu_max_pool<float, false>(at::Tensor const&)", TORCH),
    ("void at::native::(anonymous namespace)::fold<c10::complex<float>, true>(at::Tensor const&)", TORCH),
    ("void at::native::(anonymous namespace)::pool<c10::qint8>(at::Tensor const&)", TORCH),
    (
        "at::native::(anonymous namespace)::pad(at::Tensor const&)::"
        "{lambda(long, long)#1}::operator()(long, long) const",
        TORCH,
    ),
    ("void std::__introsort_loop<float*, long, __gnu_cxx::__ops::_Iter_less_iter>(float*, float*)", TORCH),
    ("at::CPUGeneratorImpl::random()", TORCH),
    ("at::vec::DEFAULT::Vectorized<float> at::native::row_sum<at::vec::DEFAULT::Vectorized<float>>()", TORCH),
    ("at::native::cpublas::(anonymous namespace)::cpublas_axpy_impl(c10::ScalarType, long)", TORCH),
    ("at::native::(anonymous namespace)::LayerNormKernelImpl(at::Tensor const&, long)", TORCH),
]
HOST_SAMPLES = [
    ("_PyEval_EvalFrameDefault", PYTHON),
    ("array_item", "/usr/lib/python3.11/lib-dynload/array.cpython-311-x86_64-linux-gnu.so"),
    ("PyInit__C", "/lib/site-packages/torch/_C.cpython-311-x86_64-linux-gnu.so"),
    ("_int_malloc", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    ("c10::impl::OperatorEntry::lookup", TORCH),
    ("at::_ops::index_put_::call", TORCH),
    ("at::TensorIteratorBase::build", TORCH),
    ("at::native::copy_impl", TORCH),
    ("at::native::ConvParams<long>::view1d_as_2d()", TORCH),
    ("void at::native::checkInBoundsForStorage<long>(c10::ArrayRef<long>, c10::ArrayRef<long>, long)", TORCH),
    ("c10::TensorImpl* at::native::_resize_impl_<long>(c10::TensorImpl*, c10::ArrayRef<long>)", TORCH),
    ("at::native::structured_mm_out_cpu::impl(at::Tensor const&, at::Tensor const&)", TORCH),
    ("void at::native::call<internal::Op>(at::Tensor const&)", TORCH),
    (
        "at::native::DispatchStub<void (*)(at::TensorIterator&, bool), at::native::add_stub>::choose()",
        TORCH,
    ),
    (
        "c10::impl::wrap_kernel_functor_unboxed_<c10::impl::detail::WrapFunctionIntoFunctor_<at::Tensor>>",
        TORCH,
    ),
    ("torch::dynamo::(anonymous namespace)::GuardManager::check_nopybind", "/lib/libtorch_python.so"),
    ("inductor_entry_impl", "/cache/ib/cib5difnrecxncnszy63.main.so"),
    ("kernel@plt", "/cache/ab/cldz37mw2hsrmid4ns5f4efiutywx4.main.so"),
    ("float at::Tensor::item<float>() const", TORCH),
    ("double c10::Scalar::to<double>() const", TORCH),
    ("__vdso_clock_gettime", "[vdso]"),
    ("mkl_serv_malloc", TORCH),
    ("mkl_serv_get_max_threads", TORCH),
    ("mm_get_tinfo", TORCH),
    ("get_tls", TORCH),
    ("_init", TORCH),
    ("kernel_py(_object*, _object*)", "/cache/rr/rr5l2le4tmpfrh7nhf2fitpv537o66ex.main.so"),
    ("openblas_get_num_threads", "/usr/lib/libopenblas.so.0"),
    ("blas_memory_alloc", TORCH),
    ("dnnl::impl::primitive_hashing::key_t::operator==", TORCH),
    ("dnnl::impl::cpu::x64::matmul::brgemm_matmul_t<(dnnl::impl::cpu::x64::cpu_isa_t)7>::pd_t::init", TORCH),
    ("decltype(auto) c10::Dispatcher::call<at::Tensor>(at::Tensor const&)", TORCH),
    ("at::Tensor::operator bool() const", TORCH),
    ("[unknown]", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    ("torch::autograd::VariableType::add_Tensor", TORCH),
]
UNCLASSIFIED_SAMPLES = [
    ("void newlib::gemm_micro(float*, at::Tensor const&)", TORCH),
    (
        "void fbgemm::new_gemm_kernel<float>(float const*, std::vector<int, std::allocator<int>> const&)",
        TORCH,
    ),
    ("[unknown]", TORCH),
    ("a_function_of_nobody", TORCH),
    ("blur(float*, long)", "/lib/site-packages/blur/_C.cpython-311-x86_64-linux-gnu.so"),
    ("blur", "/lib/site-packages/blur/_rust.abi3.so"),
    ("at::Tensor blur::greedy_nms<float>(at::Tensor const&)", "/opt/lib/blur.so"),
    ("std::_Function_handler<void (), int>::_M_invoke(std::_Any_data const&)", "/opt/lib/blur.so"),
    ("kernel", "/opt/lib/blur.so"),
    ("at::native::(anonymous namespace)::median_impl(at::Tensor const&, bool)", TORCH),
    ("at::native::(anonymous namespace)::im2col_out_cpu_template(at::Tensor&, at::Tensor const&)", TORCH),
    ("ggml_vec_dot_f32", "/opt/lib/libggml.so"),
]


@pytest.mark.parametrize(
    ("side", "samples"),
    [("kernel", KERNEL_SAMPLES), ("host", HOST_SAMPLES), ("unclassified", UNCLASSIFIED_SAMPLES)],
)
def test_what_computes_is_kernel_what_leads_there_host_and_what_no_rule_knows_unclassified(
    side: str, samples: list[tuple[str, str]]
) -> None:
    assert [sample for sample in samples if side_of(*sample) != side] == []


# Addresses of this process and the functions that lie there

LIBTORCH = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
MANGLED = "_ZN2at6native9copy_implERNS_6TensorERKS1_b"


def address_of(library: ctypes.CDLL, function: str) -> int:
    return int(ctypes.cast(getattr(library, function), ctypes.c_void_p).value)


@pytest.mark.parametrize(
    ("library", "function"),
    [
        (ctypes.pythonapi, "_PyEval_EvalFrameDefault"),
        *(
            (ctypes.CDLL(str(LIBTORCH)), f"aoti_torch_{name}")
            for name in ("cpu_mm_out", "delete_tensor_object")
        ),
    ],
)
def test_a_function_of_the_interpreter_or_of_torch_is_named_by_an_address_in_it(
    library: ctypes.CDLL, function: str
) -> None:
    found, binary = Namer().name(address_of(library, function) + 4)
    assert found == function
    assert ("python" if library is ctypes.pythonapi else LIBTORCH.name) in binary


ASSEMBLY = """
    .text
    .globl untyped_kernel
untyped_kernel:
    nop
    nop
    ret
    .globl typed_function
    .type typed_function, @function
typed_function:
    nop
    ret
    .size typed_function, .-typed_function
    .data
    .globl no_code
no_code:
    .quad 0
"""


def test_assembly_that_declares_no_function_is_named_all_the_same(tmp_path: Path) -> None:
    source, library = tmp_path / "made.s", tmp_path / "made.so"
    source.write_text(ASSEMBLY)
    subprocess.run(["g++", "-shared", "-o", library, source], check=True)
    loaded = ctypes.CDLL(str(library))
    namer = Namer()
    for function in ("untyped_kernel", "typed_function"):
        address = address_of(loaded, function)
        assert [namer.name(address + byte) for byte in (0, 1)] == [(function, str(library))] * 2
    assert b"no_code" in library.read_bytes()
    found = _table(str(library))
    named = {found.function(offset) for offset in range(library.stat().st_size)}
    assert {"untyped_kernel", "typed_function"} <= named
    assert "no_code" not in named


@pytest.mark.parametrize("kept", [True, False])
def test_the_functions_of_a_library_that_was_removed_are_named_where_it_was_kept_open(
    kept: bool, tmp_path: Path
) -> None:
    """As torch's packages are, whose kernels would count as code of no class."""
    source, library = tmp_path / "made.s", tmp_path / "made.so"
    source.write_text(ASSEMBLY)
    subprocess.run(["g++", "-shared", "-o", library, source], check=True)
    loaded = ctypes.CDLL(str(library))
    if kept:
        keep_open(library)
    library.unlink()
    found = Namer().name(address_of(loaded, "typed_function"))
    assert found == ("typed_function" if kept else UNKNOWN, str(library))


def test_the_copies_of_the_c_library_are_named_although_their_symbols_are_stripped() -> None:
    function, _ = Namer().name(address_of(ctypes.CDLL(None), "memcpy"))
    assert "mem" in function


def test_code_that_no_library_holds_is_unknown() -> None:
    assert Namer().name(1) == (UNKNOWN, UNKNOWN)
    assert Namer().name(np.zeros(1).ctypes.data)[0] == UNKNOWN


@pytest.mark.parametrize(("library", "side"), [("libllvmlite.so", "unclassified"), ("libmine.so", "kernel")])
def test_code_without_a_file_is_of_no_class_where_numba_may_have_written_it(
    monkeypatch: pytest.MonkeyPatch, library: str, side: str
) -> None:
    mapped = [Mapping(0, 10, 0, f"/lib/{library}"), Mapping(10, 20, 0, "")]
    monkeypatch.setattr(symbols, "executable_mappings", lambda: mapped)
    assert side_of(*Namer().name(15)) == side


def test_names_of_cpp_are_written_as_in_its_source_and_others_are_themselves() -> None:
    assert demangle(MANGLED) == "at::native::copy_impl(at::Tensor&, at::Tensor const&, bool)"
    assert demangle("memcpy@@GLIBC_2.14") == "memcpy"
    assert demangle("_Zno_such_name") == "_Zno_such_name"
