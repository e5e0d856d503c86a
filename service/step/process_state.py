"""Global state that a process with torch sets once, before its first tensor."""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._dynamo import config as dynamo_config
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.runtime import cache_dir_utils, runtime_utils
from torch.utils import cpp_extension

from service.modes import PLAIN_DYNAMO, PLAIN_INDUCTOR
from service.step.compile_cache import HEADERS, code_of, plain_path

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1
_MAPPED_BLOCKS = 65536
"""glibc's own limit of blocks that it maps one by one."""


def prepare_process(cache_folder: str, model: str = "") -> None:
    """Keep the compiled code of `model` in a folder of its own; fix numerics and allocation. Raises
    ValueError, with the remedy, for a folder that cannot be used or trusted.
    """
    code = code_of(cache_folder, model)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(code)
    _keep_headers_in(code.parent)
    _name_folders_plainly()
    _fix_compiler()
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(int.from_bytes(os.urandom(7)))
    keep_freed_memory()


def _name_folders_plainly() -> None:
    """Have torch build where it, Python or temporary files lie under a path with a blank."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(plain_path(Path(tempfile.gettempdir())))
    cpp_extension.TORCH_LIB_PATH = str(plain_path(Path(cpp_extension.TORCH_LIB_PATH)))
    python = sysconfig.get_config_vars()
    if python.get("LIBDIR"):
        python["LIBDIR"] = str(plain_path(Path(python["LIBDIR"])))


def _keep_headers_in(folder: Path) -> None:
    """Have torch keep its precompiled headers in `folder`: they are compiled into all that runs, and torch
    would take them from the folder for temporary files, where every user can write. No setting reaches that.
    """
    for module in (cache_dir_utils, runtime_utils):
        module.default_cache_dir = lambda: str(folder)  # type: ignore[attr-defined]
    if imported := sys.modules.get("torch._inductor.codecache"):
        imported._HEADER_DIR = str(folder / HEADERS)  # type: ignore[attr-defined]
        imported._HEADER_LOCK_DIR = str(folder / HEADERS / "locks")  # type: ignore[attr-defined]


def _fix_compiler() -> None:
    """Have the compiler do what the ladder says, whatever torch's variables in the environment say."""
    for name, value in PLAIN_INDUCTOR.items():
        setattr(inductor_config, name, value)
    for name, value in PLAIN_DYNAMO.items():
        if hasattr(dynamo_config, name):
            setattr(dynamo_config, name, value)
    if hasattr(functorch_config, "error_on_custom_op_aliasing"):
        # Its default depends on whether CI is set, and it is part of the cache key of AOTAutograd.
        functorch_config.error_on_custom_op_aliasing = False


def keep_freed_memory() -> bool:
    """Have malloc keep what is freed; returns whether this C library can (glibc).

    By default glibc returns large blocks to the system. A tape frees all it holds at the end of each step, so
    every eager step would fault thousands of pages in again, and that time would read as kernel.
    """
    return _mallopt(_M_MMAP_MAX, 0) and _mallopt(_M_TRIM_THRESHOLD, _NEVER)


@contextmanager
def mapped_blocks() -> Iterator[None]:
    """Within: malloc maps large blocks one by one, as by default, and returns each when it is freed."""
    _mallopt(_M_MMAP_MAX, _MAPPED_BLOCKS)
    try:
        yield
    finally:
        _mallopt(_M_MMAP_MAX, 0)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _mallopt(name: int, value: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(name, value))
