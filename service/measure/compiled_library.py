"""Builds shared libraries of C++ into a folder, each once per compiler, source and options."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.utils.cpp_extension import get_cxx_compiler

LONGEST = 300
"""Seconds a build may take."""


class BuildError(RuntimeError):
    """No library could be built; the message has the reason and the remedy."""


def compiled_library(
    folder: Path,
    name: str,
    source: str,
    options: Sequence[str] = (),
    building: Callable[[], object] | None = None,
    compiler: str | None = None,
) -> Path:
    """The library of `source`; `building` is called where it is not in `folder` yet, which takes seconds.

    `compiler` None: the one that torch builds extensions with. Raises BuildError where there is no C++
    compiler, and where it fails.
    """
    compiler = compiler or get_cxx_compiler()
    key = hashlib.sha256(repr((compiler, source, *options)).encode()).hexdigest()[:16]
    library = folder / f"{name}-{key}.so"
    if not library.exists():
        if building is not None:
            building()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _build(compiler, source, options, library)
    return library


def _build(compiler: str, source: str, options: Sequence[str], library: Path) -> None:
    """Build it and rename it into place, so that two processes may build it at the same time."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        language = ("-O2", "-std=c++20", "-shared", "-fPIC", "-x", "c++", "-")
        command = [compiler, *language, "-o", str(made), *options]
        try:
            subprocess.run(command, input=source, text=True, capture_output=True, check=True, timeout=LONGEST)
        except FileNotFoundError:
            message = f"this needs a C++ compiler and {compiler} is not there: install g++, or set CXX"
            raise BuildError(message) from None
        except subprocess.CalledProcessError as error:
            raise BuildError(
                f"{compiler} cannot build {library.name}: {error.stderr.strip()[:500]}"
            ) from None
        os.replace(made, library)
