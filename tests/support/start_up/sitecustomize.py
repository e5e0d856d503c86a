"""Few samples of each step at the warm-up of whole services.

Python reads this at the start of each process that has the folder in its PYTHONPATH (`FEW_SAMPLES` of
tests/support/start_up). It sets constants of modules once they are loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

CONSTANTS = {"service.engine.step_shares": {"BURST_SECONDS": 0.02}}


class Setting(Loader):
    """`loader`, after which the module's constants are set. A constant that the module lacks is an error."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for name, value in CONSTANTS[module.__name__].items():
            getattr(module, name)
            setattr(module, name, value)


class Finder(MetaPathFinder):
    """Finds the modules of CONSTANTS where all are found."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in CONSTANTS else None
        if spec is not None and spec.loader is not None:
            spec.loader = Setting(spec.loader)
        return spec


if __name__ == "sitecustomize":  # and not imported by a test
    sys.meta_path.insert(0, Finder())
