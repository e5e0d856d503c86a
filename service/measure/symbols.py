"""Names the native functions at addresses of this process, and classes them as kernel, host or system.

As on a GPU, functions that compute on tensors' elements are kernel, and all that leads to them (Python,
dispatcher, shape checks, allocator, guards) is host. What the operating system does is neither, and what no
rule knows is unclassified.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import struct
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from service.records import Side
from service.step.compile_cache import REMOVED

UNKNOWN = "[unknown]"

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_FUNCTION_TYPES = (2, 10)
"""STT_FUNC and STT_GNU_IFUNC."""

_GLOBAL_WITHOUT_TYPE = 0x10
"""STB_GLOBAL, STT_NOTYPE: assembly that does not call its entry points functions. MKL's is among it, for
processors and modes without AVX2, and so are half of a step's instants there."""

_EXECUTABLE = 4

_SYMTAB, _DYNSYM = 2, 11
_LOAD = 1


@dataclass(frozen=True, slots=True)
class Mapping:
    """Executable addresses [begin, end) of this process; at `begin` lies byte `offset` of `path`."""

    begin: int
    end: int
    offset: int
    path: str


def executable_mappings() -> list[Mapping]:
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, offset, _, _, *path = line.split(maxsplit=5)
        if "x" in rights:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            file = path[0].removesuffix(" (deleted)") if path else ""
            found.append(Mapping(begin, end, int(offset, 16), file))
    return found


OF_NUMBA = "[numba, oneDNN or MKL]"
"""In place of a file, where code without one may be of any of them: of no class."""


class Namer:
    """Names addresses by the mappings of the moment in which it was made; tables of files are kept."""

    def __init__(self) -> None:
        self._mappings = executable_mappings()
        self._begins = [mapping.begin for mapping in self._mappings]
        self._has_numba = any("llvmlite" in mapping.path for mapping in self._mappings)

    def _mapping(self, address: int) -> Mapping | None:
        index = bisect_right(self._begins, address) - 1
        return self._mappings[index] if index >= 0 and address < self._mappings[index].end else None

    def knows(self, address: int) -> bool:
        """Whether the address lies in one of the mappings; the operating system's (0) needs none."""
        return not address or self._mapping(address) is not None

    def name(self, address: int) -> tuple[str, str]:
        """(function, file) at `address`: `[unknown]` without a symbol, an empty file for code without one."""
        mapping = self._mapping(address)
        if mapping is None:
            return UNKNOWN, UNKNOWN
        if not mapping.path.startswith("/") or mapping.path.startswith("/dev/"):
            # Numba writes code as well, in which arguments are unpacked and elements looped over.
            return UNKNOWN, OF_NUMBA if self._has_numba else mapping.path
        table = _table(mapping.path)
        symbol = table.function(address - mapping.begin + mapping.offset) if table else None
        return (demangle(symbol) if symbol else _copy_function(address) or UNKNOWN), mapping.path


_COPY_FUNCTIONS = ("memcpy", "memmove", "memset")
_COPY_BYTES = 2048
"""No variant of them in glibc is longer."""


@cache
def _copy_addresses() -> list[tuple[int, str]]:
    library = ctypes.CDLL(None)
    return [
        (ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0, name) for name in _COPY_FUNCTIONS
    ]


def _copy_function(address: int) -> str | None:
    """Which of the C library's copies lies at `address`: distributions strip the names of its variants.

    The linker knows where the variant for this processor begins.
    """
    return next((name for begin, name in _copy_addresses() if 0 <= address - begin < _COPY_BYTES), None)


@dataclass(frozen=True)
class _Table:
    """Functions of one file: sorted virtual addresses, sizes, places of names, and the names themselves."""

    addresses: np.ndarray
    sizes: np.ndarray
    names: np.ndarray
    strings: bytes
    loads: list[tuple[int, int, int]]

    def function(self, offset: int) -> str | None:
        """The mangled name of the function at `offset` of the file; None between functions."""
        loaded_at = (address + offset - at for at, size, address in self.loads if at <= offset < at + size)
        address = next(loaded_at, None)
        if address is None or not len(self.addresses):
            return None
        # With a Python int numpy converts the whole table at every call: 0.1 ms for libtorch's.
        index = int(np.searchsorted(self.addresses, np.uint64(address), side="right")) - 1
        if index < 0 or (self.sizes[index] and address >= self.addresses[index] + self.sizes[index]):
            return None
        begin = int(self.names[index])
        return self.strings[begin : self.strings.index(b"\0", begin)].decode(errors="replace")


@cache
def _table(path: str) -> _Table | None:
    """The functions of an ELF file, from its full symbol table or else its dynamic one; None without any."""
    kept = REMOVED.get(path)
    try:
        with (
            open(path if kept is None else f"/proc/self/fd/{kept}", "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _read(data) if data[:5] == b"\x7fELF\x02" else None
    except (OSError, ValueError):
        # A library may have been removed since it was mapped, and not kept open: its functions stay unknown.
        return None


def _read(data: mmap.mmap) -> _Table | None:
    (programs_at, sections_at) = struct.unpack_from("<QQ", data, 32)
    program_size, programs, section_size, sections, _ = struct.unpack_from("<HHHHH", data, 54)
    loads = []
    for index in range(programs):
        kind, _, offset, address, _, size = struct.unpack_from(
            "<IIQQQQ", data, programs_at + index * program_size
        )
        if kind == _LOAD:
            loads.append((offset, size, address))
    headers = [
        struct.unpack_from("<IIQQQQII", data, sections_at + index * section_size) for index in range(sections)
    ]
    tables = {header[1]: header for header in headers if header[1] in (_SYMTAB, _DYNSYM)}
    chosen = tables.get(_SYMTAB) or tables.get(_DYNSYM)
    if chosen is None:
        return None
    _, _, _, _, offset, size, link, _ = chosen
    symbols = np.frombuffer(data[offset : offset + size], dtype=_SYMBOL)
    code = [index for index, header in enumerate(headers) if header[2] & _EXECUTABLE]
    entry = np.isin(symbols["info"] & 15, _FUNCTION_TYPES) | (symbols["info"] == _GLOBAL_WITHOUT_TYPE)
    symbols = symbols[entry & np.isin(symbols["section"], code)]
    symbols = symbols[np.argsort(symbols["value"], kind="stable")]
    strings = headers[link]
    return _Table(
        addresses=symbols["value"].copy(),
        sizes=symbols["size"].copy(),
        names=symbols["name"].copy(),
        strings=data[strings[4] : strings[4] + strings[5]],
        loads=loads,
    )


@cache
def demangle(symbol: str) -> str:
    """`symbol` as C++ writes it; itself where it is no C++ name."""
    if not symbol.startswith("_Z"):
        return symbol.partition("@")[0]
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    address = library.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not address:
        return symbol
    text = ctypes.string_at(address).decode(errors="replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(address))
    return text


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
_NAMED = r"c10::(?:BFloat16|Half|Float8\w+|complex<\w+>|q\w+)"
_ANY = rf"(?:float|double|bool|short|int|long|(?:un)?signed char|{_NAMED})"

_INDUCTOR = r"/[a-z2-7]{20,}(\.\w+)?\.so$"
"""A library of Inductor's, which is named by a hash in base 32."""

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
         symbol=r"^(void )?(kernel(\(|\.|$)|cpp_fused_|cpp_CppMicroGemm)", binary=_INDUCTOR),
    Rule("element functions", "kernel", "vector mathematics and random numbers that the loops call",
         symbol=r"^Sleef_|^at::CPUGeneratorImpl::random"),
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
    Rule("kernels by name", "kernel", "native functions that are the registered kernel of their operator",
         symbol=r"at::native::\(anonymous namespace\)::\w*_kernel(_impl)?\b"),
    Rule("kernels by other names", "kernel", "registered kernels that are called otherwise",
         symbol=r"LayerNorm\w*KernelImpl\(|at::native::\(anonymous namespace\)::copy_same_type_transpose_"
                r"|CompositeRandomAccessor"),
    Rule("shapes", "host", "checks and sizes of tensors, made anew for symbolic integers; the way to oneDNN",
         symbol=r"^at::native::(_?resize|check|_expand|_conv_|_select|compute_arange|mkldnn_|ConvParams)[\w:]*$",
         binary=r"/libtorch", name_alone=True),
    Rule("typed loops", "kernel", "functions of ATen that are made anew for each type of element",
         symbol=rf"at::native::(?:[\w:]|\(anonymous namespace\))*\w<[^<>()]*?\b{_ANY}(?![\w:])",
         binary=r"/libtorch"),
    Rule("parallel loops", "kernel", "what a thread does of a kernel's elements, from one index to another",
         symbol=r"at::native::.*\{lambda\((long, long|int, int)\)#\d+\}::operator\(\)\(\1\)",
         binary=r"/libtorch"),
    Rule("loops within", "unclassified", "what prepares and the loop over elements are one function",
         symbol=r"^at::native::.*(cpu_template|_out_frame|median_impl|index_select_out_cpu_dim1_|get_pools|"
                r"repeat_interleave_cpu|nll_loss\w*_cpu(::impl)?)$", binary=r"/libtorch", name_alone=True),
    Rule("sorting", "kernel", "algorithms of the C++ library over elements",
         symbol=r"\bstd::__(intro|insertion|unguarded|adjust_heap|heap_select|push_heap|merge|move_merge|rotate)",
         binary=r"/libtorch"),
    Rule("copies", "kernel", "moving and clearing tensors' bytes",
         symbol=r"^_*(mem(cpy|move|set)|mempcpy)", binary=r"libc[.-]"),
    Rule("Python", "host", "the interpreter, its own extensions and torch's: others may loop over elements",
         binary=r"/(lib)?python[\d.]*[^/]*$|/lib-dynload/|/torch/_C\.|/libtorch_python|/libffi"),
    Rule("run-time libraries", "host", "allocator, locks, loader, exceptions, the clock",
         binary=r"/(libc|ld-linux[^/]*|libpthread|libdl|libstdc\+\+|libgcc_s|libc10[^/]*|libshm)[.-][^/]*$|^\[vdso\]"),
    Rule("PyTorch", "host", "dispatcher, checks of shapes, tensors and their storage, autograd",
         symbol=r"^(at|c10|torch|caffe2|sdp|ideep|std|__gnu_cxx|fmt)\b|^aoti_torch_|^operator_(new|delete)",
         binary=r"/libtorch", name_alone=True),
    Rule("dispatch of oneDNN", "host", "finding and making a primitive",
         symbol=r"dnnl(::|_)", binary=r"libtorch|dnnl"),
    Rule("Inductor's wrappers", "host", "what calls the fused kernels: guards, buffers, calls of operators",
         symbol=r"inductor_entry|AOTInductor|^\w*kernel_py\b|^(std|at|c10|torch)::|^call$|^__static_init|^PyInit|^parse_arg",
         binary=_INDUCTOR, name_alone=True),
)  # fmt: skip
"""Anything else is unclassified."""


@cache
def side_of(symbol: str, binary: str) -> Side:
    return next((rule.side for rule in RULES if rule.matches(symbol, binary)), "unclassified")


def rule_of(symbol: str, binary: str) -> str:
    """The name of the rule that classes a sample; `anything else` where none does."""
    return next((rule.name for rule in RULES if rule.matches(symbol, binary)), "anything else")
