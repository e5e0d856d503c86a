"""Between a sweep and its load generator process: one assignment in, events out, kept in events.jsonl."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from threading import Thread

import msgspec

from loadtests.plan.cells import Plan
from loadtests.run.folder import REPOSITORY
from loadtests.run.rows import Stage, each_line
from loadtests.run.run_file import CutBlock, InterimCheck, RoundMachine
from service.parent_death import owned


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Input of the load generator, which does not run on `avoid_cpus`, the engine's cores.

    `sampled`: one request before each closed-loop block
    has its steps sampled. `canary_bytes` is the size of the model's weights; 0: no canary. In a `part` after
    the first, requests that have a row are not sent again, and open-loop cells keep their `rates` (arrivals
    per second by cell) and `cut_visits`. `workers` load processes post the requests; 1: the load generator
    itself. `rows_at_once`: sequences that the service runs together; 1 where it merges no requests.
    """

    run: str
    url: str
    folder: str
    plan: Plan
    avoid_cpus: list[int] = []
    exporter_port: int = 0
    sampled: bool = False
    canary_bytes: int = 0
    part: int = 1
    workers: int = 1
    rates: dict[str, float] = {}
    cut_visits: list[CutBlock] = []
    rows_at_once: int = 1


class GeneratorStarted(msgspec.Struct, frozen=True, tag="started"):
    """The load generator has started on `cpus`; `note` is a line about its metrics port."""

    cpus: list[int]
    note: str


class RequestEnded(msgspec.Struct, frozen=True, tag="ended"):
    """One request has ended and its row is written; `rejected` as in RequestRow."""

    stage: Stage
    round: int
    cell: str
    latency_seconds: float
    error: str | None
    rejected: bool = False


class WarmupPassEnded(msgspec.Struct, frozen=True, tag="pass"):
    """One warm-up pass has ended; `over`: measuring begins. `settled` and `reason` as in WarmUp."""

    number: int
    settled: bool
    over: bool
    reason: str


class MeasuringBegan(msgspec.Struct, frozen=True, tag="measuring"):
    """Warm-up is over. `rates`: arrivals per second of open-loop cells; the canary as in RoundMachine."""

    rates: dict[str, float]
    canary_bytes_per_second: float | None


class BlockCut(msgspec.Struct, frozen=True, tag="cut"):
    """No further request of a block is sent; the rows of those in flight follow."""

    visit: CutBlock


class RoundEnded(msgspec.Struct, frozen=True, tag="round"):
    machine: RoundMachine


class InterimCheckEnded(msgspec.Struct, frozen=True, tag="look"):
    """An interim check has ended; `requests`: of the rounds until the next, 0 where measuring is over."""

    look: InterimCheck
    requests: int


class GeneratorFinished(msgspec.Struct, frozen=True, tag="finished"):
    """The plan was run, or `aborted` is the reason why not; `disk_full`: because no row could be written.

    The canary is that after the last round.
    """

    canary_bytes_per_second: float | None
    aborted: str | None = None
    disk_full: bool = False


KeptEvent = (
    GeneratorStarted
    | WarmupPassEnded
    | MeasuringBegan
    | BlockCut
    | RoundEnded
    | InterimCheckEnded
    | GeneratorFinished
)
"""What is kept of a part besides its rows."""

GeneratorEvent = KeptEvent | RequestEnded


EVENTS_FILE = "events.jsonl"


class PartEvent(msgspec.Struct, frozen=True):
    """A line of the file: an event of part `part`. A sweep that is killed writes no `run.json` at its end."""

    part: int
    event: KeptEvent


def read_events(folder: Path) -> list[PartEvent]:
    """The events of a folder in their order; none where it has no file. Raises RowsError as `each_line`."""
    path = folder / EVENTS_FILE
    return list(each_line(path, PartEvent)) if path.exists() else []


HEARTBEAT_SECONDS = 1.0


def run_load_generator(
    assignment: Assignment, log: Path, inherited: Sequence[int] = ()
) -> Generator[GeneratorEvent | None]:
    """Run the load generator on `assignment`; yields its events, and None after each second without one.

    Closing this generator terminates the process, and so does the end of this one. It has the descriptors
    `inherited`. Its standard error goes to `log`.
    """
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    with log.open("ab") as errors:
        process = subprocess.Popen(
            owned([sys.executable, "-m", "loadtests.run.load_generator"], signal.SIGKILL),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=tuple(inherited),
        )
    assert process.stdin is not None
    assert process.stdout is not None
    lines: queue.Queue[bytes | None] = queue.Queue()

    def listen(stream: Iterable[bytes]) -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    reader = Thread(target=listen, args=(process.stdout,), daemon=True)
    try:
        with process.stdin:
            process.stdin.write(msgspec.json.encode(assignment))
        reader.start()
        decoder = msgspec.json.Decoder(GeneratorEvent)
        while True:
            try:
                line = lines.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                yield None
                continue
            if line is None:
                return
            yield decoder.decode(line)
    finally:
        process.terminate()
        process.wait()
        if reader.is_alive():
            reader.join()
        process.stdout.close()
