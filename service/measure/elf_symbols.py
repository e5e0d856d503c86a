"""Names of native functions: the symbol tables of the files that are mapped into this process."""

from __future__ import annotations

import ctypes
import mmap
import struct
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

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
    """The mappings of this process as they are now, by address."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, offset, _, _, *path = line.split(maxsplit=5)
        if "x" in rights:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            found.append(Mapping(begin, end, int(offset, 16), path[0] if path else ""))
    return found


class Namer:
    """Names addresses by the mappings of the moment in which it was made; tables of files are kept."""

    def __init__(self) -> None:
        self._mappings = executable_mappings()
        self._begins = [mapping.begin for mapping in self._mappings]

    def knows(self, address: int) -> bool:
        """Whether the address lies in one of the mappings; the operating system's (0) needs none."""
        index = bisect_right(self._begins, address) - 1
        return not address or (index >= 0 and address < self._mappings[index].end)

    def name(self, address: int) -> tuple[str, str]:
        """(function, file) at `address`: `[unknown]` without a symbol, an empty file for code without one."""
        index = bisect_right(self._begins, address) - 1
        if index < 0 or address >= self._mappings[index].end:
            return UNKNOWN, UNKNOWN
        mapping = self._mappings[index]
        if not mapping.path.startswith("/") or mapping.path.startswith("/dev/"):
            return UNKNOWN, mapping.path
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
        place = next(
            (o - at + address for at, size, address in self.loads if at <= (o := offset) < at + size), None
        )
        if place is None or not len(self.addresses):
            return None
        index = int(np.searchsorted(self.addresses, place, side="right")) - 1
        if index < 0 or (self.sizes[index] and place >= self.addresses[index] + self.sizes[index]):
            return None
        begin = int(self.names[index])
        return self.strings[begin : self.strings.index(b"\0", begin)].decode(errors="replace")


@cache
def _table(path: str) -> _Table | None:
    """The functions of an ELF file, from its full symbol table or else its dynamic one; None without any."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data) if data[:5] == b"\x7fELF\x02" else None
    except (OSError, ValueError):
        # A library may have been deleted since it was mapped; its functions stay unknown.
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
