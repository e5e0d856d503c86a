"""Few samples of each step at the warm-up of whole services.

Python reads this at the start of each process that has the folder in its PYTHONPATH (`FEW_SAMPLES` of
tests/support/start_up). It sets constants of modules once they are loaded.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

CONSTANTS = {"service.engine.step_shares": {"BURST_SECONDS": 0.02}}


class Loader(SourceFileLoader):
    """Sets the module's constants. A constant that the module lacks is an error."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name, value in CONSTANTS[module.__name__].items():
            getattr(module, name)
            setattr(module, name, value)


class Finder(MetaPathFinder):
    """Finds the modules of CONSTANTS where all are found."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in CONSTANTS else None
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(name, spec.origin)
        return spec


if __name__ == "sitecustomize":  # and not imported by a test
    sys.meta_path.insert(0, Finder())
