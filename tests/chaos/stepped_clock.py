"""A wall clock that can be stepped, for the processes of one service (see clock_shift.cpp)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.chaos.fault import NotPossible

SOURCE = Path(__file__).with_name("clock_shift.cpp")
SECOND_NS = 1_000_000_000


class SteppedClock:
    """The clock of what is started with `environment`; built in `folder`."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("g++") is None:
            raise NotPossible("no stepped clock here: g++ is missing")
        library, self._file = folder / "clock_shift.so", folder / "clock_shift"
        subprocess.run(
            ["g++", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True
        )
        self.set_ahead(0)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFT_FILE": str(self._file)}

    def set_ahead(self, seconds: int) -> None:
        """From now on it is `seconds` ahead of the machine's; negative: behind."""
        shift = (seconds * SECOND_NS).to_bytes(8, "little", signed=True)
        if self._file.exists():
            with self._file.open("r+b", buffering=0) as file:
                file.write(shift)
        else:
            self._file.write_bytes(shift)
