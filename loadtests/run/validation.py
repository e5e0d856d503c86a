"""The gates that a sweep must pass for its numbers to be valid, and `validation.json`, which keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from loadtests.run import gates
from loadtests.run.gates import Gate as Gate
from loadtests.run.gates import Scrapes
from loadtests.run.rows import ROWS_FILE, RequestRow, each_row
from loadtests.run.run_file import SweepRun
from loadtests.run.schedule import Finished
from loadtests.run.target import read_scrapes

VALIDATION_FILE = "validation.json"


class CheckedRows:
    """What gates and resumption keep of rows that are read once: at most some 50 bytes of each."""

    def __init__(self) -> None:
        self.finished = Finished()
        self._requests = gates.Requests()
        self._counters = gates.Counters()
        self._rate = gates.Rate()
        self._delay = gates.ScheduleDelay()
        self._texts = gates.Texts()

    @property
    def failed(self) -> int:
        return self._requests.failed

    def passing(self, rows: Iterable[RequestRow]) -> Iterator[RequestRow]:
        """Yield `rows`, each added as it passes."""
        for row in rows:
            self.add(row)
            yield row

    def add(self, row: RequestRow) -> None:
        for of_all in (self.finished, self._requests, self._counters):
            of_all.add(row)
        if row.stage == "measure" and row.open_loop:
            self._rate.add(row)
            self._delay.add(row)
        if row.counts:
            self._texts.add(row)

    def sent(self, part: int) -> int:
        """Rows of `part` of the sweep, of whatever stage."""
        return self._counters.sent(part)

    def gates(self, run: SweepRun, scrapes: Sequence[Scrapes]) -> list[Gate]:
        """All gates, then all warnings; `scrapes` of /metrics by part."""
        found = [
            gates.complete(run, self.finished, self.failed),
            self._requests.errors(),
            self._counters.gate(run, scrapes),
            self._rate.gate(),
            gates.client_cpu(run),
            gates.parity(run),
            self._texts.gate(run),
            gates.control(self.finished.all_latencies(), run),
            gates.verdicts(run),
            gates.rounds(run),
            gates.warmup(run),
            gates.rounds_marked(run),
            gates.gaps(run),
            self._requests.disturbed(),
            self._requests.queue(),
            self._requests.merged(run),
            self._counters.fallbacks(run),
            self._delay.gate(),
            self._requests.rejections(run),
            gates.cuts(run),
        ]
        return sorted(found, key=lambda gate: gate.warning)

    def gates_of(self, folder: Path, run: SweepRun) -> list[Gate]:
        """As `gates`, with the scrapes of the rows' `folder`."""
        parts = range(1, max(1, len(run.parts)) + 1)
        return self.gates(run, [read_scrapes(folder, number) for number in parts])


def check_rows(folder: Path) -> CheckedRows:
    """Read the rows of a results folder once: none where no request has ended yet. Raises as `each_row`."""
    checked = CheckedRows()
    for row in each_row(folder) if (folder / ROWS_FILE).exists() else ():
        checked.add(row)
    return checked


def validate_folder(folder: Path, run: SweepRun) -> list[Gate]:
    """All gates of a results folder, from its rows and scrapes as they are now."""
    return check_rows(folder).gates_of(folder, run)


def write_validation(folder: Path, gates: Sequence[Gate]) -> None:
    document = {"passed": not any(gate.failed for gate in gates), "gates": gates}
    (folder / VALIDATION_FILE).write_bytes(
        msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    )
