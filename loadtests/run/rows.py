"""requests.jsonl: the fields of its rows, one per request, the writer (flushes each row) and the reader."""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec


def append_line(file: FileIO, content: bytes) -> None:
    """Write `content` and a line end to an unbuffered file.

    Raises OSError where that is not possible as a whole, as on a full disk; its beginning may then stand at
    the end of the file, as after a kill.
    """
    line = content + b"\n"
    while line:
        line = line[file.write(line) :]


def cut_torn_line(path: Path) -> int:
    """Cut off what follows the last line end of `path`, where it exists; returns how many bytes that was."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
    return len(content) - whole


ROWS_FILE = "requests.jsonl"
READ_BYTES = 2**20
"""Read at once: a line has about 2 KB, and the default buffer 8."""

Stage = Literal["warmup", "search", "sample", "measure"]

REJECTED = 429
"""The status of a request that the service's queue has no place for."""


class RowPhase(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Timings of one phase of a request (its prefill or its decode), summed over the phase's steps.

    Keys and values are those of `timings.prefill` and `timings.decode` in the response, as far as reports
    use them; None where the device does not measure a part. `dispatch_low_seconds` and
    `dispatch_high_seconds` are the interval of a sampled dispatch, which rests on the four numbers of
    samples. `samples_of`: those of the request's own steps ("request"), or the newest of its mode, phase and
    batch bucket ("traffic"). `minor_faults` are page faults of the engine's thread. `period_seconds` is all
    the time of the phase, the engine's own work between steps included.
    """

    steps: int = 0
    wall_seconds: float | None = None
    dispatch_seconds: float | None = None
    device_span_seconds: float | None = None
    kernel_seconds: float | None = None
    sync_wait_seconds: float | None = None
    dispatch_low_seconds: float | None = None
    dispatch_high_seconds: float | None = None
    kernel_samples: int | None = None
    host_samples: int | None = None
    system_samples: int | None = None
    unclassified_samples: int | None = None
    samples_of: str | None = None
    minor_faults: int | None = None
    period_seconds: float | None = None


class RowSources(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How dispatch and kernel times were obtained: `measured`, `sampled`, `profiled`.

    `steps` "shared": the service merged the request with others, whose steps these are as well. None: of an
    older service, which never merges.
    """

    dispatch: str | None = None
    kernel: str | None = None
    steps: str | None = None


class RequestRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. Instants are Unix seconds; `status` 0: there was no response.

    `index` counts the requests of one visit: requests of one round with the same index, batch size and
    prompt set have the same prompts. `load` or `rate` is that of an open-loop cell; stage "sample" was
    sent before a visit, for how its steps split into dispatch and kernel, and "search", in folders of
    older sweeps, to find a rate: both are in no statistic of latency. The second block has the response's
    timings under their own names, absent where the request failed. Files hold more fields than these: all
    others of `timings` are kept unchanged. `padded_prompt_tokens` are the tokens per row that prefill
    computed, padding included; `attended_tokens` the cache positions that attention read in the last
    step. `text_digest` identifies the completions' texts. `profiled`: it ran under the profiler, which
    slows it down, and counts in no statistic. `part` is the start of the sweep that it belongs to: 1, or
    more after `--resume`. `picked_mode` is the mode that `auto` ran; None: `auto` was not asked for, or
    did not answer.
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
    rate: float | None = None
    index: int | None = None
    part: int = 1
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    queue_seconds: float | None = None
    dispatch_seconds: float | None = None
    device_span_seconds: float | None = None
    kernel_seconds: float | None = None
    sync_wait_seconds: float | None = None
    stall_seconds: float | None = None
    other_seconds: float | None = None
    total_seconds: float | None = None
    time_to_first_token_seconds: float | None = None
    involuntary_switches: int | None = None
    padded_prompt_tokens: int | None = None
    attended_tokens: int | None = None
    effective_batch: float | None = None
    text_digest: str | None = None
    picked_mode: str | None = None
    profiled: bool = False
    prefill: RowPhase | None = None
    decode: RowPhase | None = None
    sources: RowSources | None = None

    @property
    def ran_mode(self) -> str:
        """The mode of the ladder that it ran in; `auto` where only the service knows."""
        return self.picked_mode or self.mode

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return self.status == 200 and self.error is None

    @property
    def counts(self) -> bool:
        """Whether it counts in statistics: measured, successful, and not slowed down by the profiler."""
        return self.ok and self.stage == "measure" and not self.profiled

    @property
    def merged(self) -> bool:
        """Whether it ran in steps that other requests ran in too."""
        return self.sources is not None and self.sources.steps == "shared"

    @property
    def open_loop(self) -> bool:
        """Whether its cell's requests are sent by a schedule, whatever the responses do."""
        return self.load is not None or self.rate is not None

    @property
    def rejected(self) -> bool:
        """Whether the service's bounded queue refused it (429) in an open loop, as it does past saturation.

        During warm-up requests are sent one at a time: there a refusal is an error.
        """
        return self.status == REJECTED and self.open_loop and self.stage != "warmup"

    @property
    def steps(self) -> int:
        """Steps of both phases."""
        return (self.prefill.steps if self.prefill else 0) + (self.decode.steps if self.decode else 0)


class RowWriter:
    """Appends rows to a folder's `requests.jsonl`; each is flushed before the next is written."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / ROWS_FILE).open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def write(self, row: dict[str, Any]) -> None:
        """Append `row`, which holds at least the fields of `RequestRow` that have no default.

        Raises OSError where there is no space for it; `read_rows` leaves out a torn last line.
        """
        append_line(self._file, self._encoder.encode(row))

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class RowsError(ValueError):
    """A results folder that cannot be read; the message names the file, and the line or the remedy."""


def read_rows(folder: Path) -> list[RequestRow]:
    """All rows of a results folder, as `each_row`: of a long sweep they take gigabytes."""
    return list(each_row(folder))


def each_row(folder: Path) -> Iterator[RequestRow]:
    """The rows of a results folder one by one, in the order in which the requests ended.

    A truncated last line, as a killed sweep leaves it, is left out. Raises RowsError, while it is iterated,
    for a missing file or any other line that is not a row.
    """
    path = folder / ROWS_FILE
    decode = msgspec.json.Decoder(RequestRow).decode
    number = 1
    try:
        with path.open("rb", buffering=READ_BYTES) as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield decode(line)
                number += 1
    except msgspec.DecodeError as error:
        raise RowsError(f"{path}, line {number}: {error}") from error
    except OSError as error:
        raise RowsError(f"no rows in {folder}: {error}; name a folder that a sweep has written") from error
