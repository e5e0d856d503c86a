"""What a selftest puts out: lines of progress, a table, and `selftest.json`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import msgspec
from rich.console import Console
from rich.table import Table

from loadtests.run.environment import cpu_model, git_state
from service.measure.rounds import Log
from service.selftest.results import CheckResult, Verdict

FILE = "selftest.json"
FORMAT_VERSION = 1
PRINT_SECONDS = 5.0
_STYLES: dict[Verdict, str] = {
    "pass": "green", "fail": "bold red", "undecided": "yellow", "not measurable here": "dim",
}  # fmt: skip


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One selftest. `machine` is the processor, and the GPU if one was used; `detail` counts the verdicts."""

    format_version: int = FORMAT_VERSION
    commit: str | None
    dirty: bool | None
    machine: str
    cpu: str
    passed: bool
    detail: str
    torch: str
    threads: int
    dtype: str
    created: str
    modes: list[str]
    seconds: float
    rows: list[CheckResult]

    @property
    def failed(self) -> list[CheckResult]:
        """Rows that make the selftest fail."""
        return [row for row in self.rows if row.verdict == "fail"]


def new_report(
    rows: list[CheckResult], machine: dict[str, str | int], modes: list[str], seconds: float
) -> Report:
    """`rows` with the commit, the machine and the settings that they depend on."""
    names = dict.fromkeys(str(machine.get(key, "unknown")) for key in ("cpu", "device"))
    counts = Counter(row.verdict for row in rows)
    detail = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return Report(
        **git_state(),
        machine=" + ".join(names),
        cpu=cpu_model(),
        passed=not counts["fail"],
        detail=detail,
        torch=str(machine.get("torch", "unknown")),
        threads=int(machine.get("threads", 0)),
        dtype=str(machine.get("dtype", "unknown")),
        modes=modes,
        seconds=seconds,
        rows=rows,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def new_folder(root: Path | str = "results") -> Path:
    """A fresh folder `<root>/selftest-<UTC>-<commit>`."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = Path(root) / f"selftest-{stamp}-{(git_state()['commit'] or 'nocommit')[:8]}"
    folder.mkdir(parents=True)
    return folder


def write(report: Report, folder: Path) -> Path:
    """Write `selftest.json`; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return path


def read(path: Path) -> Report:
    """A report as written. Raises msgspec.DecodeError or OSError."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def print_table(report: Report, console: Console) -> None:
    """Every row with its verdict."""
    table = Table(
        "property", "bound", "measured [95 %]", "verdict", "note", title=f"selftest, {report.machine}"
    )
    for row in report.rows:
        verdict = row.verdict.upper() if row.verdict == "fail" else row.verdict
        again = " (twice)" if row.repeated else ""
        table.add_row(
            row.name, row.bound, measured(row), f"[{_STYLES[row.verdict]}]{verdict}{again}[/]", row.note
        )
    console.print(table)


def measured(row: CheckResult) -> str:
    """Value and interval as text; durations in µs or ms."""
    if row.value is None or row.low is None or row.high is None:
        return "–"
    scale = 1.0
    unit = "" if row.unit == "ratio" else f" {row.unit}"
    if row.unit == "s":
        scale, unit = (1e3, " ms") if abs(row.value) >= 1e-3 else (1e6, " µs")
    value, low, high = (f"{number * scale:.3g}" for number in (row.value, row.low, row.high))
    return f"{value}{unit}" if low == high else f"{value} [{low}, {high}]{unit}"


class ProgressPrinter:
    """Prints a line when a check ends, and every PRINT_SECONDS what runs now."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = monotonic()
        self._now = "starting"
        self._over = Event()
        self._thread = Thread(target=self._print_now, daemon=True)
        self._thread.start()

    def running(self, name: str, text: str) -> None:
        """The check `name` is at `text`."""
        self._now = f"{name}: {text}"

    def log_of(self, name: str) -> Log:
        """`running` for one check."""
        return partial(self.running, name)

    def ended(self, name: str, title: str, rows: list[CheckResult]) -> None:
        """The check `name` has ended with `rows`."""
        counts = Counter(row.verdict for row in rows)
        self._line(f"{name} ({title}): {', '.join(f'{n} {verdict}' for verdict, n in counts.items())}")
        self._now = "on to the next check"

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def _print_now(self) -> None:
        while not self._over.wait(PRINT_SECONDS):
            self._line(f"  … {self._now}")

    def _line(self, text: str) -> None:
        self._console.print(f"{monotonic() - self._began:4.0f} s  {text}", highlight=False, markup=False)
