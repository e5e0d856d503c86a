"""Libraries of C++ over torch, built into the cache folder once per torch, compiler and source.

By the paths of `torch.utils.cpp_extension`, whose own `load` needs ninja besides a compiler.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from torch.utils.cpp_extension import get_cxx_compiler, include_paths, library_paths

from service.anatomy.errors import StudyError
from service.anatomy.progress import Report


def load_library(cache_folder: str, name: str, source: str, report: Report) -> None:
    """Load the operators of `source`, built (some seconds) where `cache_folder` has no library of it.

    To be called once per process and library: an operator cannot be registered again. Raises StudyError where
    there is no C++ compiler.
    """
    compiler = get_cxx_compiler()
    key = hashlib.sha256(f"{torch.__version__} {compiler} {source}".encode()).hexdigest()[:16]
    library = Path(cache_folder) / f"{name}-{key}.so"
    if not library.exists():
        report(f"compiling {name} in C++")
        library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        build(compiler, source, library)
    torch.ops.load_library(library)


def build(compiler: str, source: str, library: Path) -> None:
    """Build `library` and rename it into place, so that two processes may build it at the same time."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        command = [compiler, "-O2", "-std=c++20", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(made)]
        command += [f"-I{path}" for path in include_paths()]
        command += [*(f"-L{path}" for path in library_paths()), "-ltorch_cpu", "-lc10"]
        try:
            subprocess.run(command, input=source, text=True, capture_output=True, check=True, timeout=300)
        except FileNotFoundError:
            message = f"this needs a C++ compiler and {compiler} is not there: install g++, or set CXX"
            raise StudyError("unsupported_here", message) from None
        except subprocess.CalledProcessError as error:
            message = f"{compiler} cannot build against torch's headers: {error.stderr.strip()[:500]}"
            raise StudyError("unsupported_here", message) from None
        os.replace(made, library)
