"""Classes sampled functions as kernel or host: one rule per class, with its reason.

As on a GPU, functions that compute on tensors' elements are kernel, and all that leads to them (Python,
dispatcher, shape checks, allocator, guards) is host. What the operating system does is neither. The first
rule that matches counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

Side = Literal["kernel", "host", "system"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Functions of one kind: `symbol` is searched in the demangled name, `binary` in the file's path."""

    name: str
    side: Side
    reason: str
    symbol: str = ""
    binary: str = ""

    def matches(self, symbol: str, binary: str) -> bool:
        """Whether a sample in `symbol` of `binary` is of this class."""
        return bool(re.search(self.symbol, symbol) and re.search(self.binary, binary))


_ELEMENT = r"(?:float|double|c10::(?:BFloat16|Half))"

RULES: tuple[Rule, ...] = (
    Rule("operating system", "system", "interrupts come from no operator, and page faults are counted apart",
         binary=r"^\[(kernel|guest)"),
    Rule("stubs", "host", "a jump through the linkage table is part of a call", symbol=r"@plt$"),
    Rule("parallel regions", "kernel", "a thread that has done its part waits for the kernel's other threads",
         binary=r"/lib(gomp|iomp5|omp)\b[^/]*\.so"),
    Rule("matrix products", "kernel", "MKL's own functions, packing and small-size entry included",
         symbol=r"^(mkl_|MKL_|blas_|cblas_|sgem[mv]|SGEM[MV]|sdot)"),
    Rule("oneDNN", "kernel", "its primitives, and the code it writes at run time",
         symbol=r"dnnl(::|_).*(execute|jit_|kernel|gemm|brgemm)"),
    Rule("code without a file", "kernel", "only oneDNN and MKL write code at run time in this process",
         symbol=r"^\[unknown\]$", binary=r"^(//anon|anon_inode|\[anon|/dev/zero|$)"),
    Rule("fused kernels", "kernel", "functions of Inductor's generated libraries that loop over elements",
         symbol=r"^(void )?(kernel(\(|$)|cpp_fused_|cpp_CppMicroGemm)", binary=r"\.so$"),
    Rule("element functions", "kernel", "vector mathematics that the loops call", symbol=r"^Sleef_"),
    Rule("scalar functions", "kernel", "the C library's mathematics, for elements that vectors leave over",
         binary=r"/libm[.-]"),
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
)  # fmt: skip
"""Anything else is host."""


@cache
def side_of(symbol: str, binary: str) -> Side:
    """`kernel`, `host` or `system` for one sample."""
    return next((rule.side for rule in RULES if rule.matches(symbol, binary)), "host")


def rule_of(symbol: str, binary: str) -> str:
    """The name of the rule that classes a sample; `anything else` where none does."""
    return next((rule.name for rule in RULES if rule.matches(symbol, binary)), "anything else")
