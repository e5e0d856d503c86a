"""Addresses of this process and the functions that lie there."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from service.measure.symbols import UNKNOWN, Namer, _table, demangle, executable_mappings

TORCH = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
MANGLED = "_ZN2at6native9copy_implERNS_6TensorERKS1_b"


def address_of(library: ctypes.CDLL, function: str) -> int:
    address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value
    assert address is not None
    return address


@pytest.mark.parametrize("inside", [0, 4])
def test_a_function_of_the_interpreter_is_named_by_its_address(inside: int) -> None:
    address = address_of(ctypes.pythonapi, "_PyEval_EvalFrameDefault")
    function, binary = Namer().name(address + inside)
    assert function == "_PyEval_EvalFrameDefault"
    assert "python" in binary


@pytest.mark.parametrize("function", ["aoti_torch_cpu_mm_out", "aoti_torch_delete_tensor_object"])
def test_a_function_of_torch_is_named_by_its_address(function: str) -> None:
    found, binary = Namer().name(address_of(ctypes.CDLL(str(TORCH)), function))
    assert (found, Path(binary).name) == (function, TORCH.name)


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
    assert found is not None
    named = {found.function(offset) for offset in range(library.stat().st_size)}
    assert {"untyped_kernel", "typed_function"} <= named
    assert "no_code" not in named


def test_the_copies_of_the_c_library_are_named_although_their_symbols_are_stripped() -> None:
    function, _ = Namer().name(address_of(ctypes.CDLL(None), "memcpy"))
    assert "mem" in function


def test_code_that_no_library_holds_is_unknown() -> None:
    assert Namer().name(1) == (UNKNOWN, UNKNOWN)
    assert Namer().name(np.zeros(1).ctypes.data)[0] == UNKNOWN


def test_mappings_are_in_order_without_overlap_and_hold_the_interpreter_and_torch() -> None:
    mappings = executable_mappings()
    assert all(mapping.begin < mapping.end for mapping in mappings)
    assert all(a.end <= b.begin for a, b in pairwise(mappings))
    paths = {mapping.path for mapping in mappings}
    assert any("python" in path for path in paths), sys.executable
    assert any(path.endswith(TORCH.name) for path in paths)


def test_names_of_cpp_are_written_as_in_its_source_and_others_are_themselves() -> None:
    assert demangle(MANGLED) == "at::native::copy_impl(at::Tensor&, at::Tensor const&, bool)"
    assert demangle("memcpy@@GLIBC_2.14") == "memcpy"
    assert demangle("_Zno_such_name") == "_Zno_such_name"
