"""requests.jsonl: the fields of its rows, one per request, and files of JSON lines, written and read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from service.records import Phase, PhaseTimings

ROWS_FILE = "requests.jsonl"

Stage = Literal["warmup", "sample", "measure"]

REJECTED = 429
"""The status of a request that the service's queue has no room for."""


class RowPhase(PhaseTimings, frozen=True, kw_only=True, gc=False, array_like=False):
    """Timings of one phase of a request, as in its response. `minor_faults` None: an older row has none."""

    minor_faults: int | None = None  # type: ignore[assignment]  # the service always counts them


class RowSources(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How dispatch and kernel times were obtained: `measured`, `sampled`, `profiled`.

    `steps` "shared": the service merged the request with others, whose steps these are as well.
    """

    dispatch: str | None = None
    kernel: str | None = None
    steps: str | None = None


class RequestRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. Instants are Unix seconds; `status` 0: there was no response.

    Requests of one round with the same `index`, batch size and prompt set have the same prompts; of a module,
    which makes `calls` calls in place of prompts and tokens, the same inputs in each `size`. `load` or
    `rate` is that of an open-loop cell. Stage "sample" was sent before a block for the split of its steps,
    and is in no statistic of latency, as is what the profiler slowed down (`profiled`). `part` is the start
    of the sweep that it belongs to. The second group has the response's timings under their own names, absent
    where the request failed; files keep all others too. `padded_prompt_tokens`: per row, as prefill computed
    them; `attended_tokens`: cache positions that the last step's attention read; `text_digest` identifies the
    texts.
    """

    run: str
    cell: str
    control: bool
    round: int
    sequence: int
    index: int
    stage: Stage
    mode: str
    effective_mode: str | None
    batch_size: int
    prompt_set: str | None = None
    new_tokens: int | None = None
    calls: int | None = None
    size: str | None = None
    concurrency: int
    load: float | None
    rate: float | None = None
    request_id: str
    intended_start: float
    start: float
    latency_seconds: float
    latency_from_intended_seconds: float
    status: int
    error: str | None
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
    profiled: bool = False
    prefill: RowPhase | None = None
    decode: RowPhase | None = None
    forward: RowPhase | None = None
    sources: RowSources | None = None

    @property
    def ok(self) -> bool:
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
    def compared_seconds(self) -> float:
        """What modes are compared by: latency from the intended start; of a module, the time of one call.

        HTTP is no part of a call. A request of a module that succeeded has the time of its calls.
        """
        forward = self.forward
        if forward is None or forward.calls_seconds is None:
            return self.latency_from_intended_seconds
        return forward.calls_seconds / forward.steps

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases.values())

    @property
    def phases(self) -> dict[Phase, RowPhase]:
        """Those of its workload; none where it failed."""
        found: dict[Phase, RowPhase | None]
        found = {"prefill": self.prefill, "decode": self.decode, "forward": self.forward}
        return {name: phase for name, phase in found.items() if phase is not None}


class RowsError(ValueError):
    """A results folder that cannot be read; the message names the file, and the line or the remedy."""


def each_row(folder: Path) -> Iterator[RequestRow]:
    """The rows of a results folder one by one, in the order in which the requests ended. Raises RowsError."""
    try:
        yield from each_line(folder / ROWS_FILE, RequestRow)
    except OSError as error:
        raise RowsError(f"no rows in {folder}: {error}; name a folder that a sweep has written") from error


Document = TypeVar("Document")


def each_line(path: Path, kind: type[Document]) -> Iterator[Document]:
    """The documents of a file of JSON lines; a truncated last line, as a kill leaves it, is left out.

    Raises RowsError, while it is iterated, for any other line that is no `kind`.
    """
    decode = msgspec.json.Decoder(kind).decode
    number = 1
    try:
        # A line has about 2 KB, and the default buffer 8.
        with path.open("rb", buffering=2**20) as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield decode(line)
                number += 1
    except msgspec.DecodeError as error:
        raise RowsError(f"{path}, line {number}: {error}") from error


class LineWriter(AbstractContextManager["LineWriter"]):
    """Appends documents to a file of JSON lines; each is in the file before the call returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, document: object) -> None:
        """Append `document`.

        Raises OSError where that is not possible as a whole, as on a full disk; its beginning may then be at
        the end of the file, as after a kill.
        """
        line = msgspec.json.encode(document) + b"\n"
        while line:
            line = line[self._file.write(line) :]

    def __exit__(self, *_: object) -> None:
        self._file.close()


def cut_torn_line(path: Path) -> None:
    """Cut off what follows the last line end of `path`, where it exists."""
    if path.exists():
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
