"""`launchbound selftest`: runs the chosen checks, the worker's first, then the service's; prints the table
and what the rows amount to, writes `selftest.json`, and ends with one JSON line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import gmtime, monotonic, strftime
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.table import Table

from loadtests.run.folder import commit_name, git_state, now
from loadtests.run.target import TargetError
from service.front.launch import LaunchError
from service.front.settings import Settings
from service.machine import processor_features, processor_name
from service.modes import swept_modes
from service.nvml import expected_device
from service.parent_death import owned
from service.proof import over_http
from service.proof.over_http import running_service
from service.proof.rows import Event, Row, Run, Verdict, broken, run_check

PRINT_SECONDS = 5.0
"""At least between two lines of what runs now."""

FILE = "selftest.json"
FORMAT_VERSION = 2
ROWS_FILE, SAMPLES_FILE = "rows.jsonl", "samples.jsonl"
"""The rows of each check as soon as it has ended, and a line with its samples, to judge them again."""

ENGINE_CHECKS = (
    "injected", "sampling-rate", "plain-kernels", "unclassified", "instructions", "background",
    "instrumentation", "minimal-loop", "cuda",
)  # fmt: skip
"""Run in a worker process, on the engine's cores, without a service."""

ALL_CHECKS = (*ENGINE_CHECKS, *over_http.CHECKS)
"""In the order in which they run; those over HTTP against a service started for them."""


def choose_checks(only: Iterable[str] | None) -> list[str]:
    """The names to run; None: all. Raises ValueError for an unknown name."""
    names = set(ALL_CHECKS if only is None else only)
    unknown = sorted(names - set(ALL_CHECKS))
    if unknown:
        raise ValueError(f"no check '{unknown[0]}': try some of {', '.join(ALL_CHECKS)}")
    return [name for name in ALL_CHECKS if name in names]


def main(
    settings: Settings,
    only: list[str] | None = None,
    out: Path | None = None,
    conclude: Callable[[dict[str, Any]], None] = lambda result: print(json.dumps(result)),
) -> int:
    """Run all checks, or `only` some, into folder `out` (default: results/selftest-<UTC>-<commit>). Returns 1
    where a row failed, else 0, also where rows are undecided or were not run; `conclude` prints which. Raises
    ValueError, with the remedy, for an unknown check or settings that cannot work.
    """
    names, console, began = choose_checks(only), Console(), monotonic()
    folder = out or Path("results", f"selftest-{strftime('%Y%m%dT%H%M%SZ', gmtime())}-{commit_name()}")
    folder.mkdir(parents=True, exist_ok=True)
    run = _Selftest(settings, folder, console)
    if in_worker := [name for name in names if name in ENGINE_CHECKS]:
        run.in_worker(in_worker)
    if over_service := [name for name in names if name in over_http.CHECKS]:
        run.over_http(over_service)
    report = new_report(run.rows, run.finished, run.machine, settings, round(monotonic() - began, 1))
    path = folder / FILE
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    print_table(report, console)
    named = {name: names for name, names in report["rows_by_verdict"].items() if name != "passed"}
    shown = ("seconds", "outcome", "complete", "incomplete_because", "counts")
    conclude({"path": str(path), **{name: report[name] for name in shown}, **named})
    return 1 if report["outcome"] == "failed" else 0


class _Selftest:
    def __init__(self, settings: Settings, folder: Path, console: Console) -> None:
        self._settings, self._folder, self._console = settings, folder, console
        self._began, self._printed = monotonic(), 0.0
        self.rows: list[Row] = []
        self.finished: set[str] = set()
        self.machine: dict[str, str | int] = {}

    def in_worker(self, names: list[str]) -> None:
        """Run `names` in a worker process. Raises ValueError where its settings cannot work."""
        settings = msgspec.json.encode(self._settings.engine_settings("")).decode()
        command = owned([sys.executable, "-m", "service.proof.worker", settings, ",".join(names)])
        decode = msgspec.json.Decoder(Event).decode
        log_file = self._folder / "worker.log"
        with (
            log_file.open("ab") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self.take(decode(line))
            finally:
                process.terminate()
        if process.returncode == 2:
            raise ValueError(log_file.read_text(errors="replace").strip().splitlines()[-1])
        for name in names:
            if name not in self.finished:
                self._ended(name, [broken(name, f"the worker process ended early, see {log_file}")])

    def take(self, event: Event) -> None:
        if event.facts is not None:
            self.machine = event.facts
        elif event.rows is not None:
            self._ended(event.name, event.rows, event.runs)
        else:
            self._running(event.name, event.text)

    def over_http(self, names: list[str]) -> None:
        try:
            with running_service(self._settings, self._folder, partial(self._running, "service")) as service:
                for name in names:
                    log = partial(self._running, name)
                    log("begins")
                    self._ended(name, *run_check(name, over_http.CHECKS[name], service, log))
        except (LaunchError, TargetError) as error:
            self.rows.append(broken("a running service", f"{error} (see {self._folder / 'service.log'})"))

    def _ended(self, name: str, rows: list[Row], runs: Sequence[Run] = ()) -> None:
        # On disk at once: what breaks later loses no row.
        with (self._folder / ROWS_FILE).open("ab") as file:
            file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
        with (self._folder / SAMPLES_FILE).open("ab") as file:
            file.write(msgspec.json.encode({"check": name, "runs": runs}) + b"\n")
        self.rows += rows
        self.finished.add(name)
        counts = Counter(row.verdict for row in rows)
        self._line(f"{name}: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())}")

    def _running(self, name: str, text: str) -> None:
        if monotonic() - self._printed >= PRINT_SECONDS:
            self._line(f"  … {name}: {text}")

    def _line(self, text: str) -> None:
        self._printed = monotonic()
        self._console.print(f"{self._printed - self._began:4.0f} s  {text}", highlight=False, markup=False)


# What the rows amount to

Outcome = Literal["passed", "failed", "undecided", "partial"]

_VERDICTS: dict[Verdict, tuple[str, str]] = {
    "pass": ("passed", "green"), "fail": ("failed", "bold red"),
    "undecided": ("undecided", "yellow"), "not measurable here": ("not_measurable", "dim"),
}  # fmt: skip
"""What a row is counted as, and its style in a terminal's table."""

_OUTCOMES: dict[Outcome, str] = {
    "passed": "passed",
    "failed": "FAILED",
    "undecided": "UNDECIDED: no row failed, and not all passed",
    "partial": "PARTIAL: no row failed, and this does not count as the machine's selftest",
}

MEASURED_AS_DEFAULT = (
    "model", "batch_sizes", "prefill_chunk", "context", "threads", "instrumentation", "profile_every",
)  # fmt: skip
"""Settings that a complete selftest has at their defaults: the numbers that it proves depend on them."""


def tally(rows: Iterable[Row], finished: Collection[str]) -> dict[str, list[str]]:
    """Names of `rows` by verdict; `finished` are the checks that have their rows, the others were not run."""
    named: dict[str, list[str]] = {name: [] for name, _ in _VERDICTS.values()}
    for row in rows:
        named[_VERDICTS[row.verdict][0]].append(row.name)
    return named | {"not_run": [name for name in ALL_CHECKS if name not in finished]}


def outcome_of(named: Mapping[str, list[str]], complete: bool) -> Outcome:
    """`passed` only where the selftest was `complete`, and no row failed or is undecided."""
    if named["failed"]:
        return "failed"
    if not complete:
        return "partial"
    return "undecided" if named["undecided"] else "passed"


def sentence(named: Mapping[str, list[str]]) -> str:
    ran = sum(len(named[name]) for name in ("passed", "failed", "undecided"))
    shown = {"not_measurable": "not measurable here", "not_run": "not run"}
    others = {shown.get(name, name): names for name, names in named.items() if names and name != "passed"}
    parts = [f"{what}: {', '.join(names)}" for what, names in others.items()]
    return "; ".join([f"{len(named['passed'])} of {ran} rows passed", *parts])


def why_incomplete(
    settings: Settings, facts: Mapping[str, str | int], git: Mapping[str, object], not_run: Collection[str]
) -> list[str]:
    """Why a selftest does not stand for its machine and commit; empty where it does."""
    reasons = [f"{len(not_run)} of {len(ALL_CHECKS)} checks were not run"] if not_run else []
    if git.get("commit") is None:
        reasons.append("the commit is unknown")
    if git.get("dirty"):
        reasons.append("uncommitted changes")
    for name in ("modes", *MEASURED_AS_DEFAULT):
        value = getattr(settings, name)
        default = Settings.model_fields[name].get_default(call_default_factory=True)
        if value != (swept_modes(expected_device(settings.device)) if name == "modes" else default):
            shown = ",".join(map(str, value)) if isinstance(value, list) else value
            reasons.append(f"{name} is {shown}")
    if facts.get("dtype") != facts.get("default_dtype"):
        reasons.append(f"dtype is {facts.get('dtype')}")
    return reasons


def new_report(
    rows: list[Row],
    finished: Collection[str],
    facts: Mapping[str, str | int],
    settings: Settings,
    seconds: float,
) -> dict[str, Any]:
    """The contents of FILE. Only a `complete` one stands for its machine and commit. `linears` is how linear
    weights lay in memory, which decides which kernels ran.
    """
    git, named = git_state(), tally(rows, finished)
    reasons = why_incomplete(settings, facts, git, named["not_run"])
    unknown: dict[str, str | int] = dict.fromkeys(("cpu", "device", "torch", "dtype"), "unknown")
    known = {**unknown, "threads": 0, "linears": None, **facts}
    return {
        "format_version": FORMAT_VERSION,
        **{name: git[name] for name in ("commit", "dirty")},
        "machine": " + ".join(dict.fromkeys((str(known["cpu"]), str(known["device"])))),
        "cpu": processor_name(),
        "cpu_features": processor_features(),
        "device": known["device"],
        "outcome": outcome_of(named, not reasons),
        "complete": not reasons,
        "incomplete_because": reasons,
        "counts": {name: len(names) for name, names in named.items()},
        "rows_by_verdict": named,
        "detail": sentence(named),
        **{name: known[name] for name in ("torch", "threads", "dtype", "linears")},
        "model": settings.model,
        "created": now(),
        "modes": settings.modes,
        "seconds": seconds,
        "rows": rows,
    }


def print_table(report: Mapping[str, Any], console: Console) -> None:
    """Every row with its verdict, then what they amount to, and why it does not count where it does not."""
    table = Table("property", "bound", "measured [95 %]", "verdict", "note", title=report["machine"])
    for row in report["rows"]:
        verdict = row.verdict.upper() if row.verdict == "fail" else row.verdict
        again = f" ({row.runs} runs)" if row.runs > 1 else ""
        styled = f"[{_VERDICTS[row.verdict][1]}]{verdict}{again}[/]"
        table.add_row(row.name, row.bound, measured(row), styled, row.note)
    console.print(table)
    lines = [f"{_OUTCOMES[report['outcome']]}. {report['detail']}."]
    if not report["complete"]:
        lines.append(f"partial, because: {'; '.join(report['incomplete_because'])}")
    console.print("\n".join(lines), highlight=False, markup=False)


def measured(row: Row) -> str:
    """Value and interval as text; durations in µs or ms."""
    if row.value is None or row.low is None or row.high is None:
        return "–"
    scale = 1.0
    unit = "" if row.unit == "ratio" else f" {row.unit}"
    if row.unit == "s":
        scale, unit = (1e3, " ms") if abs(row.value) >= 1e-3 else (1e6, " µs")
    value, low, high = (f"{number * scale:.3g}" for number in (row.value, row.low, row.high))
    return f"{value}{unit}" if low == high else f"{value} [{low}, {high}]{unit}"
