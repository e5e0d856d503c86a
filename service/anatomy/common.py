"""What every study uses: its bench, how it refuses and reports, which step its arguments name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Protocol

import msgspec
import torch

from service.machine import pin
from service.measure.cases import AnyBench, AnyCase, open_bench
from service.modes import GradMode
from service.records import EngineSettings, Phase
from service.statistics.intervals import Interval, named_fields
from service.step.loaded_model import Precision
from service.step.process_state import prepare_process
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
    """Takes what the study does now, as one short line; `done` of `total` alike parts are finished."""

    def __call__(self, text: str, done: int | None = None, total: int | None = None, /) -> None: ...


def counted(report: Report, total: int) -> Callable[[str], None]:
    """A log for what writes one line at the begin of each of `total` parts; reports them, counted."""
    finished = count()
    return lambda text: report(text, next(finished), total)


def resolve_bucket(bench: AnyBench, batch_size: int) -> int:
    """The configured bucket that `batch_size` runs in. Raises StudyError where there is none."""
    bucket = bench.kind.bucket(bench.inputs, batch_size)
    if bucket is None:
        sizes = f"lies between 1 and {max(bench.inputs)}"
        if not bench.kind.tokens:
            sizes = f"is one of {', '.join(map(str, sorted(bench.inputs)))}"
        raise StudyError("invalid_request", f"batch_size {sizes} here, got {batch_size}", "batch_size")
    return bucket


def resolve_phase(bench: AnyBench, phase: Phase | None) -> Phase:
    """`phase`, or for None the main one of what is served. Raises StudyError for one of another workload."""
    try:
        return bench.kind.phase_of(phase)
    except ValueError as error:
        raise StudyError("invalid_request", f"phase: {error}", "phase") from None


def resolve_modes(bench: AnyBench, requested: str | None, param: str = "mode") -> list[str]:
    """`requested` alone, or every configured mode for None. Raises StudyError for one not configured."""
    if requested is None:
        return list(bench.modes)
    if requested not in bench.modes:
        known = ", ".join(bench.modes)
        raise StudyError("unknown_mode", f"no mode '{requested[:64]}' here; try one of {known}", param)
    return [requested]


def resolve_case(bench: AnyBench, mode: str, bucket: int, phase: Phase, report: Report) -> AnyCase:
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
        return cls(**named_fields(interval, "median_seconds"))


ATTACHED = (
    "the profiler ran in this process before these times were taken, and its library stays attached: the "
    "host may have taken longer to launch since then, most of all to replay a graph; `launchbound anatomy` "
    "runs one study in a process of its own"
)


def attached_note() -> list[str]:
    return [ATTACHED] if profiler_attached() else []


def broken_notes(cases: Iterable[AnyCase]) -> list[str]:
    """Of each mode that was compiled with breaks."""
    return [
        f"{mode} breaks the graph: the operators study of it names the lines"
        for mode in dict.fromkeys(case.mode for case in cases if case.breaks)
    ]


GRAD_MODES: dict[GradMode, Callable[[], AbstractContextManager[object]]] = {
    "enabled": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def autocast_of(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Autocast, where the served `precision` uses it."""
    lowered = precision.autocast
    return nullcontext() if lowered is None else torch.autocast(device.type, lowered)


def prepare_bench(settings: EngineSettings) -> AnyBench:
    """Prepare this process and load what it serves. Raises StudyError for settings that cannot work."""
    try:
        prepare_process(settings.cache_folder, settings.model)
        bench = open_bench(settings)
    except ValueError as error:
        raise StudyError("invalid_request", str(error)) from error
    # The engine's cores, so that both measure the same ones: it is paused meanwhile or not there.
    pin(bench.cpus)
    return bench
