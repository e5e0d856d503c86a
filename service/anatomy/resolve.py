"""From a study's arguments to bucket, modes and warmed step; a StudyError lists what is configured."""

from __future__ import annotations

from service.anatomy.errors import StudyError
from service.anatomy.progress import Report
from service.measure.cases import Bench, Case
from service.protocol.messages import Phase


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
