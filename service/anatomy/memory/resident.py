"""How far a step makes the process grow: its peak resident size above the one before it."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from service.statistics.intervals import Interval, median_interval

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to clear_refs it resets the peak resident size to the present one: proc(5)."""

SAMPLES = 9


class ProcessMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The process's resident size now, and its maximum since the process began.

    `growth` resets the kernel's own peaks, VmHWM and `ru_maxrss`, so the largest one before is kept here.
    """

    resident_bytes: int
    peak_bytes: int


@dataclass(slots=True)
class _Peak:
    """Maximum resident size of all readings so far: the kernel's own is reset, and lags by some pages."""

    seen_bytes: int = 0

    def see(self, status: dict[str, int]) -> int:
        """The maximum, this reading included."""
        self.seen_bytes = max(self.seen_bytes, *status.values(), _kernels_peak(status))
        return self.seen_bytes

    def reset(self) -> None:
        """Reset the kernel's peak. Raises OSError where that is not permitted."""
        self.see(_status_bytes("VmHWM"))
        CLEAR.write_text(RESET_PEAK)


_PEAK = _Peak()


def process_now() -> ProcessMemory:
    """From one reading of the kernel's status, and those before it."""
    now = _status_bytes("VmRSS", "VmHWM")
    return ProcessMemory(resident_bytes=now["VmRSS"], peak_bytes=_PEAK.see(now))


def why_not() -> str | None:
    """Why a step's growth cannot be measured here; None where it can."""
    if _malloc_trim() is None:
        return "this C library has no malloc_trim: pages freed before would hide what a step takes"
    try:
        _PEAK.reset()
    except OSError as error:
        return f"the peak cannot be reset: {CLEAR}: {error.strerror}"
    return None


def growth(run: Callable[[], object]) -> Interval:
    """Bytes by which the process grows at most during `run`: the median of several runs, in whole pages.

    Kernels' scratch that is not from torch's allocator is in it, and so is what malloc keeps. Raises OSError
    where `why_not` has a reason.
    """
    run()
    return median_interval([float(_growth_bytes(run)) for _ in range(SAMPLES)])


def _growth_bytes(run: Callable[[], object]) -> int:
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
    _PEAK.reset()
    before = _status_bytes("VmRSS")["VmRSS"]
    result = run()
    grown = _status_bytes("VmHWM")["VmHWM"] - before
    del result
    return max(grown, 0)


def _kernels_peak(status: dict[str, int]) -> int:
    """VmHWM, or `ru_maxrss` for kernels without it, which may include the parent's peak before the fork."""
    return status.get("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(*fields: str) -> dict[str, int]:
    parted = (line.partition(":") for line in STATUS.read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in parted if name in fields}


def _malloc_trim() -> Callable[[int], int] | None:
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim
