"""Source lines, named by module: where a package is installed does not matter."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from models.served import Served

_OWN_PACKAGES = frozenset(name.partition(".")[0] for name in (__name__, Served.__module__))


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Line `number` of `file`. `module` is empty for code of no module, such as an expression's."""

    file: str
    number: int
    module: str

    @classmethod
    def of_frame(cls, frame: FrameType, number: int | None = None) -> SourceLine:
        """Line `number` of the code of `frame`; None: the line at which it is."""
        module = frame.f_globals.get("__name__") or ""
        return cls(frame.f_code.co_filename, frame.f_lineno if number is None else number, module)

    @classmethod
    def in_file(cls, file: str, number: int) -> SourceLine:
        """For torch's stacks, which have no module: that of the imported module whose file it is."""
        for name, module in list(sys.modules.items()):
            if getattr(module, "__dict__", {}).get("__file__") == file:
                return cls(file, number, name)
        return cls(file, number, "")

    @property
    def text(self) -> str:
        """The source, empty where it cannot be read."""
        return linecache.getline(self.file, self.number).strip()

    @property
    def is_generated(self) -> bool:
        """Whether Inductor wrote it. Such code has a module name below torch's."""
        return Path(self.file).is_relative_to(cache_dir())

    def is_in(self, package: str) -> bool:
        """Whether its module is `package` or below it."""
        return self.module == package or self.module.startswith(f"{package}.")

    def __str__(self) -> str:
        """`service/anatomy/console.py:7` for our modules, the last two parts of the path for others."""
        if self.is_generated:
            return f"generated code:{self.number}"
        path = Path(self.file)
        if self.module.partition(".")[0] not in _OWN_PACKAGES:
            return f"{'/'.join(path.parts[-2:])}:{self.number}"
        end = "/__init__.py" if path.name == "__init__.py" else ".py"
        return f"{self.module.replace('.', '/')}{end}:{self.number}"


def calling_line(*skipped: str) -> SourceLine | None:
    """The innermost line that is neither torch's, nor this module's, nor one of the modules `skipped`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        line = SourceLine.of_frame(frame)
        of_torch = line.is_in(torch.__name__) and not line.is_generated
        if line.module not in (__name__, *skipped) and not of_torch:
            return line
        frame = frame.f_back
    return None
