"""Libraries of C++ over torch, built into the cache folder once per torch, compiler and source.

By the paths of `torch.utils.cpp_extension`, whose own `load` needs ninja besides a compiler.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

from service.anatomy.common import Report, StudyError
from service.measure.compiled_library import BuildError, compiled_library


def load_library(cache_folder: str, name: str, source: str, report: Report) -> None:
    """Load the operators of `source`, built (some seconds) where `cache_folder` has no library of it.

    To be called once per process and library: an operator cannot be registered again. Raises StudyError where
    there is no C++ compiler.
    """
    options = [f"-I{path}" for path in include_paths()]
    options += [*(f"-L{path}" for path in library_paths()), "-ltorch_cpu", "-lc10"]
    options.append(f'-DLAUNCHBOUND_TORCH="{torch.__version__}"')  # another torch gets a library of its own
    try:
        library = compiled_library(
            Path(cache_folder), name, source, options, partial(report, f"compiling {name} in C++")
        )
    except BuildError as error:
        raise StudyError("unsupported_here", str(error)) from None
    torch.ops.load_library(library)
