"""Temporary folders that name the process they belong to, so that those of killed ones are removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def prefix_of(kind: str) -> str:
    """What a folder of this process begins with; `kind` tells it from those of other purposes."""
    return f"{kind}-{os.getpid()}-"


def other_owner(kind: str) -> int | None:
    """Another living process that has a folder of `kind`, or None. Those of dead ones are removed."""
    found = None
    for path in Path(tempfile.gettempdir()).glob(f"{kind}-*"):
        owner = path.name.removeprefix(f"{kind}-").partition("-")[0]
        if not owner.isdigit() or int(owner) == os.getpid():
            continue
        if Path("/proc", owner).exists():
            found = int(owner)
        else:
            shutil.rmtree(path, ignore_errors=True)
    return found
