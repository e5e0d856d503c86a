"""What every study uses: how it refuses, how it reports, which bucket and step its arguments name."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Protocol

import msgspec

from service.measure.cases import Bench, Case
from service.records import Phase
from service.statistics.intervals import Interval
from service.step.profiling import profiler_attached


class StudyError(Exception):
    """The study is refused; `message` has the remedy and `param` names the argument at fault.

    `type` is what the client reads as `error.type`: `invalid_request` for arguments that cannot work,
    `unknown_mode`, `mode_failed` for a mode that does not compile, `unsupported_here` for what this device
    or torch cannot show.
    """

    def __init__(self, type: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.type = type
        self.message = message
        self.param = param


class Report(Protocol):
    """Takes what the study does now, as one short line; shown or sent to the client as it comes.

    `done` of `total` alike parts are finished, where there are such.
    """

    def __call__(self, text: str, done: int | None = None, total: int | None = None, /) -> None:
        """Report."""


def named(what: str, report: Report) -> Report:
    """`report`, with `what` before every line."""
    return lambda text, done=None, total=None, /: report(f"{what}: {text}", done, total)


def counted(report: Report, total: int) -> Callable[[str], None]:
    """A log for what writes one line at the begin of each of `total` parts; reports them, counted."""
    finished = count()
    return lambda text: report(text, next(finished), total)


def resolve_bucket(bench: Bench, batch_size: int) -> int:
    """The smallest configured bucket that holds `batch_size`. Raises StudyError where none does."""
    largest = max(bench.buffers)
    if not 1 <= batch_size <= largest:
        raise StudyError(
            "invalid_request", f"batch_size lies between 1 and {largest} here, got {batch_size}", "batch_size"
        )
    return min(bucket for bucket in bench.buffers if bucket >= batch_size)


def resolve_modes(bench: Bench, requested: str | None, param: str = "mode") -> list[str]:
    """`requested` alone, or every configured mode for None. Raises StudyError for one not configured."""
    if requested is None:
        return list(bench.modes)
    if requested not in bench.modes:
        known = ", ".join(bench.modes)
        raise StudyError("unknown_mode", f"no mode '{requested[:64]}' here; try one of {known}", param)
    return [requested]


def resolve_case(bench: Bench, mode: str, bucket: int, phase: Phase, report: Report) -> Case:
    """The warmed step. Raises StudyError where the mode does not compile."""
    report(f"making {mode} ready ({phase}, batch {bucket})")
    try:
        return bench.case(mode, bucket, phase)
    except Exception as error:
        message = f"{mode} does not run here: {type(error).__name__}: {error}"[:2000]
        raise StudyError("mode_failed", message, "mode") from error


class MedianSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Median of `samples` with its 95 % bounds, in seconds; None where there were too few for an interval."""

    median_seconds: float
    low: float | None
    high: float | None
    samples: int

    @classmethod
    def of(cls, interval: Interval) -> MedianSeconds:
        """`interval` with its infinite bounds as None."""
        return cls(
            median_seconds=interval.value,
            low=finite(interval.low),
            high=finite(interval.high),
            samples=interval.samples,
        )


def finite(bound: float) -> float | None:
    """`bound`, or None for an infinite one."""
    return bound if math.isfinite(bound) else None


ATTACHED = (
    "the profiler ran in this process before these times were taken, and its library stays attached: the "
    "host may have taken longer to launch since then, most of all to replay a graph; `launchbound anatomy` "
    "runs one study in a process of its own"
)


def attached_note() -> list[str]:
    """ATTACHED where it is true of what is timed from now on; else nothing."""
    return [ATTACHED] if profiler_attached() else []
