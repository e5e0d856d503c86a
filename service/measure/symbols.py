"""Classes sampled functions as kernel, host or system: one rule per class, with its reason.

As on a GPU, functions that compute on tensors' elements are kernel, and all that leads to them (Python,
dispatcher, shape checks, allocator, guards) is host. What the operating system does is neither, and what no
rule knows is unclassified. The first rule that matches counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from service.records import Side


@dataclass(frozen=True, slots=True)
class Rule:
    """Functions of one kind: `symbol` is searched in the demangled name, `binary` in the file's path."""

    name: str
    side: Side
    reason: str
    symbol: str = ""
    binary: str = ""
    name_alone: bool = False
    """Search in the function's name without its parameters, template arguments and result."""

    def matches(self, symbol: str, binary: str) -> bool:
        """Whether a sample in `symbol` of `binary` is of this class."""
        searched = function_name(symbol) if self.name_alone else symbol
        return bool(re.search(self.symbol, searched) and re.search(self.binary, binary))


@cache
def function_name(symbol: str) -> str:
    """`at::native::add` of `at::Tensor at::native::add<float>(at::Tensor const&)`.

    Parameters say what is handed over, not whose the function is.
    """
    plain = symbol.replace("(anonymous namespace)", "{anonymous}").replace("decltype(auto)", "auto")
    plain = re.sub(r"operator *(\(\)|<<|<=>|<=?|->\*?|>>|>=?|\[\]|[^\w\s(]+| )", "operator_", plain)
    depth, kept = 0, ""
    for letter in plain:
        if letter == "(" and depth == 0:
            break
        depth += (letter == "<") - (letter == ">")
        if depth == 0 and letter != ">":
            kept += letter
    return kept.strip().rpartition(" ")[2]


_ELEMENT = r"(?:float|double|c10::(?:BFloat16|Half))"

RULES: tuple[Rule, ...] = (
    Rule("operating system", "system", "interrupts come from no operator, and page faults are counted apart",
         binary=r"^\[(kernel|guest)"),
    Rule("stubs", "host", "a jump through the linkage table is part of a call",
         symbol=r"@plt$|^_init$|^__tls_(init|get_addr)"),
    Rule("parallel regions", "kernel", "a thread that has done its part waits for the kernel's other threads",
         binary=r"/lib(gomp|iomp5|omp)\b[^/]*\.so"),
    Rule("services of BLAS", "host", "memory, threads and processor look-up of a BLAS are no arithmetic",
         symbol=r"^(mkl_serv_|mkl_blas_.*(update_cache_sizes|get_tls)|mm_|get_tls$|update_cache_sizes|"
                r"openblas_(get|set)|blas_memory_(alloc|free)|blas_thread_init|"
                r"bli_(init|finalize|cntx_|rntm_|gks_|pba_|pool_|arch_|thread_init))"),
    Rule("matrix products", "kernel", "MKL's own functions, packing and small-size entry included",
         symbol=r"^(mkl_|MKL_|blas_|cblas_|[sd]gem[mv]|[SD]GEM[MV]|sdot)"),
    Rule("OpenBLAS", "kernel", "its kernels, packing and the threads' loops, as a library or within torch",
         symbol=r"^(inner_(advanced_)?thread|gemm_driver|exec_blas|gemv_[nt]$|"
                r"[sdcz]?b?(s|sb|sh|d)?(gemm|gemv|symv|trsm|dot|axpy|scal)_(k|n|t|kernel|beta|[io][nt]copy|thread|small)\w*)"),
    Rule("BLAS library", "kernel", "what else a BLAS runs is its arithmetic",
         binary=r"/lib(openblas|blis|blas|flexiblas|mkl_)[^/]*\.so"),
    Rule("BLIS", "kernel", "AOCL-BLIS within another library",
         symbol=r"^bli_[sd]?(gem[mv]|gemmsup|dot|axpy|scal|pack|copy)"),
    Rule("XNNPACK", "kernel", "its micro-kernels and what hands elements to them",
         symbol=r"^xnn_(\w*ukernel|compute_|pack_|x?[fq]\w*_(gemm|igemm|vadd|dwconv))"),
    Rule("Arm Compute Library", "kernel", "its kernels, packing included",
         symbol=r"^(void )?arm_(gemm|conv|compute)::.*(kernel|interleave|a64_|sve_|sme_|neon_|execute|run)|"
                r"^(a64|sve|sme2?)_\w*(gemm|gemv|hybrid|interleaved)"),
    Rule("KleidiAI", "kernel", "its micro-kernels and their packing", symbol=r"^kai_(run|matmul|kernel)_"),
    Rule("oneDNN", "kernel", "its primitives, and the code it writes at run time",
         symbol=r"^(?!.*(::pd_t::|create_primitive|primitive_(desc|cache|hashing)))"
                r".*dnnl(::|_).*(execute|jit_|kernel|gemm|brgemm|acl_)"),
    Rule("code without a file", "kernel", "only oneDNN and MKL write code at run time in this process",
         symbol=r"^\[unknown\]$", binary=r"^(//anon|anon_inode|\[anon|/dev/zero|$)"),
    Rule("fused kernels", "kernel", "functions of Inductor's generated libraries that loop over elements",
         symbol=r"^(void )?(kernel(\(|\.|$)|cpp_fused_|cpp_CppMicroGemm)", binary=r"\.so$"),
    Rule("element functions", "kernel", "vector mathematics that the loops call", symbol=r"^Sleef_"),
    Rule("scalar functions", "kernel", "the C library's mathematics, for elements that vectors leave over",
         binary=r"/libm(vec)?[.-]"),
    Rule("element functions of torch", "kernel", "templates from elements alone to one: loops call them",
         symbol=rf"^{_ELEMENT} (?:[\w:]|\(anonymous namespace\))+<{_ELEMENT}>\({_ELEMENT}(, {_ELEMENT})*\)$",
         binary=r"libtorch"),
    Rule("walk over elements", "kernel", "TensorIterator's way between inner loops: index arithmetic",
         symbol=r"^at::internal::serial_for_each|^at::DimCounter::"),
    Rule("vectorised loops", "kernel", "compiled once per instruction set: only inner loops are",
         symbol=r"at::native::(DEFAULT|AVX2|AVX512|ZVECTOR|SVE\d*|VSX)::|at::vec::|VectorizedLoop"),
    Rule("inner loops", "kernel", "what TensorIterator calls for the elements of one chunk",
         symbol=r"callback_fn<|loop_2d_from_1d|cpublas::"),
    Rule("attention", "kernel", "the flash kernel, with its loops over keys", symbol=r"cpu_flash_attention"),
    Rule("kernels by name", "kernel", "native functions that are the registered kernel of their operator",
         symbol=r"at::native::\(anonymous namespace\)::\w*_kernel(_impl)?\b"),
    Rule("kernels by other names", "kernel", "registered kernels that are called otherwise",
         symbol=r"LayerNorm\w*Kernel\w*Impl|at::native::\(anonymous namespace\)::copy_same_type_transpose_"
                r"|apply_triu_tril|CompositeRandomAccessor"),
    Rule("copies", "kernel", "moving and clearing tensors' bytes",
         symbol=r"^_*(mem(cpy|move|set)|mempcpy)", binary=r"libc[.-]"),
    Rule("Python", "host", "the interpreter, and extensions that it calls",
         binary=r"/(lib)?python[\d.]*[^/]*$|\.cpython-[^/]*\.so|\.abi3\.so|/libtorch_python|/libffi"),
    Rule("run-time libraries", "host", "allocator, locks, loader, exceptions, the clock",
         binary=r"/(libc|ld-linux[^/]*|libpthread|libdl|libstdc\+\+|libgcc_s|libc10[^/]*|libshm)[.-][^/]*$|^\[vdso\]"),
    Rule("PyTorch", "host", "dispatcher, checks of shapes, tensors and their storage, autograd",
         symbol=r"^(at|c10|torch|caffe2|sdp|ideep|std|__gnu_cxx|fmt)\b|^aoti_torch_|^operator_(new|delete)",
         binary=r"/libtorch", name_alone=True),
    Rule("dispatch of oneDNN", "host", "finding and making a primitive",
         symbol=r"dnnl(::|_)", binary=r"libtorch|dnnl"),
    Rule("Inductor's wrappers", "host", "what calls the fused kernels: guards, buffers, calls of operators",
         symbol=r"inductor_entry|AOTInductor|^\w*kernel_py\b|^(std|at|c10|torch)::|^call$|^__static_init|^PyInit|^parse_arg",
         binary=r"\.so$"),
)  # fmt: skip
"""Anything else is unclassified."""


@cache
def side_of(symbol: str, binary: str) -> Side:
    """The class of one sample."""
    return next((rule.side for rule in RULES if rule.matches(symbol, binary)), "unclassified")


def rule_of(symbol: str, binary: str) -> str:
    """The name of the rule that classes a sample; `anything else` where none does."""
    return next((rule.name for rule in RULES if rule.matches(symbol, binary)), "anything else")
