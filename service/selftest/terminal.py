"""What a selftest prints: lines of progress, then every row, then what they amount to."""

from __future__ import annotations

from collections import Counter
from functools import partial
from threading import Event, Thread
from time import monotonic

from rich.console import Console
from rich.table import Table

from service.measure.rounds import Log
from service.selftest.accounting import Outcome
from service.selftest.report import Report
from service.selftest.results import CheckResult, Verdict

PRINT_SECONDS = 5.0
_STYLES: dict[Verdict, str] = {
    "pass": "green", "fail": "bold red", "undecided": "yellow", "not measurable here": "dim",
}  # fmt: skip
_OUTCOMES: dict[Outcome, str] = {
    "passed": "passed",
    "failed": "FAILED",
    "undecided": "UNDECIDED: no row failed, and not all passed",
    "partial": "PARTIAL: no row failed, and this does not count as the machine's selftest",
}


def print_table(report: Report, console: Console) -> None:
    """Every row with its verdict, then what they amount to."""
    table = Table(
        "property", "bound", "measured [95 %]", "verdict", "note", title=f"selftest, {report.machine}"
    )
    for row in report.rows:
        verdict = row.verdict.upper() if row.verdict == "fail" else row.verdict
        again = f" ({row.runs} runs)" if row.runs > 1 else ""
        table.add_row(
            row.name, row.bound, measured(row), f"[{_STYLES[row.verdict]}]{verdict}{again}[/]", row.note
        )
    console.print(table)
    for line in verdict_lines(report):
        console.print(line, highlight=False, markup=False)


def verdict_lines(report: Report) -> list[str]:
    """The outcome, what passed and what did not by name, and why it does not count where it does not."""
    lines = [f"{_OUTCOMES[report.outcome]}. {report.detail}."]
    if not report.complete:
        lines.append(f"partial, because: {'; '.join(report.incomplete_because)}")
    return lines


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
