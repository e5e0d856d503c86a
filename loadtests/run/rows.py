"""One row per request: its fields, how it is written (flushed as it ends), and how it is read again."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

ROWS_FILE = "requests.jsonl"

Stage = Literal["warmup", "measure"]


class RowPhase(msgspec.Struct, frozen=True, kw_only=True):
    """The response's timings of one phase, as far as reports use them."""

    steps: int = 0
    wall_seconds: float | None = None
    dispatch_seconds: float | None = None
    device_span_seconds: float | None = None
    kernel_seconds: float | None = None
    sync_wait_seconds: float | None = None


class RowSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where dispatch and kernel come from: `measured`, `calibrated`, `residual`, …"""

    dispatch: str | None = None
    kernel: str | None = None


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Instants are Unix seconds; `status` 0 says that no answer came.

    The second block is the response's, under its own names, and absent where the request failed. A file may
    hold more fields than these: whatever else the service puts into `timings` is kept as it came.
    `profiled`: it ran under the profiler, which stretches what it looks at, and counts in no statistic.
    """

    run: str
    cell: str
    control: bool
    round: int
    sequence: int
    stage: Stage
    mode: str
    effective_mode: str | None
    batch_size: int
    prompt_set: str
    new_tokens: int
    concurrency: int
    load: float | None
    request_id: str
    intended_start: float
    start: float
    latency_seconds: float
    latency_from_intended_seconds: float
    status: int
    error: str | None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    queue_seconds: float | None = None
    dispatch_seconds: float | None = None
    device_span_seconds: float | None = None
    kernel_seconds: float | None = None
    sync_wait_seconds: float | None = None
    other_seconds: float | None = None
    total_seconds: float | None = None
    time_to_first_token_seconds: float | None = None
    involuntary_switches: int | None = None
    profiled: bool = False
    prefill: RowPhase | None = None
    decode: RowPhase | None = None
    sources: RowSources | None = None

    @property
    def ok(self) -> bool:
        """Whether the request was answered as asked."""
        return self.status == 200 and self.error is None

    @property
    def kernel_source(self) -> str | None:
        """Where its kernel time comes from."""
        return self.sources.kernel if self.sources else None

    @property
    def steps(self) -> int:
        """Steps of both phases."""
        return sum(phase.steps for phase in (self.prefill, self.decode) if phase)


class RowWriter:
    """Appends rows to a folder's `requests.jsonl`; each is on its way to the disk before the next begins."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / ROWS_FILE).open("ab")
        self._encoder = msgspec.json.Encoder()

    def write(self, row: dict[str, Any]) -> None:
        """Append `row`, which holds at least the fields of `RequestRow` that have no default."""
        self._file.write(self._encoder.encode(row) + b"\n")
        self._file.flush()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class RowsError(ValueError):
    """A results folder that cannot be read; the message names the file, and the line or the remedy."""


def read_rows(folder: Path) -> list[RequestRow]:
    """All rows of a results folder, in the order in which the requests ended.

    A last line that was cut off, as a killed sweep leaves it, is left out. Raises RowsError for a missing
    file or any other line that is not a row.
    """
    path = folder / ROWS_FILE
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RowsError(f"no rows in {folder}: {error}; name a folder that a sweep has written") from error
    decoder = msgspec.json.Decoder(RequestRow)
    rows = list[RequestRow]()
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise RowsError(f"{path}, line {number}: {error}") from error
    return rows
