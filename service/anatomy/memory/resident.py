"""How much a step makes the process grow for the kernel: its peak resident size above where it began."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from pathlib import Path

import msgspec

from service.statistics import median_interval

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to clear_refs it sets the peak resident size back to the present one: proc(5)."""

SAMPLES = 9


class Resident(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by which the process grew at most during one step: the median of `samples`, with 95 % bounds.

    In whole pages. Scratch that kernels take without torch's allocator is in it, as is what malloc keeps.
    """

    median_bytes: float
    low: float
    high: float
    samples: int


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """The process's resident size now, and the most that it ever was (`ru_maxrss`, which never falls)."""

    resident_bytes: int
    peak_bytes: int


def process_now() -> Process:
    """As the kernel has it."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Process(resident_bytes=_status_bytes("VmRSS"), peak_bytes=peak)


def why_not() -> str | None:
    """Why a step's growth cannot be measured here; None where it can be."""
    if _malloc_trim() is None:
        return "this C library has no malloc_trim: pages freed before would hide what a step takes"
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError as error:
        return f"the peak cannot be set back: {CLEAR}: {error.strerror}"
    return None


def growth(run: Callable[[], object]) -> Resident:
    """Run `run` some times. Raises OSError where `why_not` has a reason."""
    run()
    interval = median_interval([float(_growth_bytes(run)) for _ in range(SAMPLES)])
    return Resident(
        median_bytes=interval.value, low=interval.low, high=interval.high,
        samples=interval.samples,
    )  # fmt: skip


def _growth_bytes(run: Callable[[], object]) -> int:
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
    CLEAR.write_text(RESET_PEAK)
    before = _status_bytes("VmRSS")
    result = run()
    grown = _status_bytes("VmHWM") - before
    del result
    return max(grown, 0)


def _status_bytes(field: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _malloc_trim() -> Callable[[int], int] | None:
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim
