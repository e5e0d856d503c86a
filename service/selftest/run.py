"""Runs the chosen checks, bench first, then the service; prints the table and one JSON line last."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic

import msgspec
from rich.console import Console

from service.front.launch import LaunchError
from service.front.settings import Settings
from service.measure.rounds import Say
from service.selftest.aa_test import against_itself, twice
from service.selftest.checks import BENCH, ENGINE_REST, SERVICE, chosen, settle
from service.selftest.events import BenchEvent, CheckResults, EngineRest, Machine
from service.selftest.load import concurrency, scrape
from service.selftest.progress import Progress
from service.selftest.report import new_folder, new_report, print_table, write
from service.selftest.request_parts import request_parts
from service.selftest.results import CheckResult
from service.selftest.running_service import Served, ServedError, served

EXIT_FAILED = 1


class _Selftest:
    """One run: what has been found so far."""

    def __init__(self, settings: Settings, folder: Path, progress: Progress) -> None:
        self._settings, self._folder, self._progress = settings, folder, progress
        self.rows: list[CheckResult] = []
        self.machine: dict[str, str | int] = {}
        self._engine_seconds: dict[str, float] = {}

    def bench(self, names: list[str]) -> None:
        """Run `names` in the bench's process. Raises ValueError where its settings cannot work."""
        settings = msgspec.json.encode(self._settings.engine_settings("")).decode()
        command = [sys.executable, "-m", "service.selftest.worker", settings, ",".join(names)]
        decoder, over = msgspec.json.Decoder(BenchEvent), set[str]()
        log = self._folder / "bench.log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self._take(decoder.decode(line), over)
            finally:
                process.terminate()
        if process.returncode == 2:
            raise ValueError(log.read_text(errors="replace").strip().splitlines()[-1])
        for name in (name for name in names if name in BENCH and name not in over):
            self.rows.append(
                CheckResult(name=name, bound="runs", verdict="fail", note=f"the bench ended early, see {log}")
            )

    def _take(self, event: BenchEvent, over: set[str]) -> None:
        if isinstance(event, Machine):
            self.machine = event.described
        elif isinstance(event, EngineRest):
            self._engine_seconds = event.seconds
        elif isinstance(event, CheckResults):
            over.add(event.name)
            self._ended(event.name, event.rows)
        else:
            self._progress.say(event.name, event.text)

    def over_http(self, names: list[str]) -> None:
        """Run `names` against a service started for them."""
        checks: dict[str, Callable[[Served, Say], list[CheckResult]]] = {
            "parts": lambda at, say: request_parts(at, say, self._engine_seconds),
            "scrape": scrape,
            "concurrency": concurrency,
            "eager-eager": against_itself,
            "twice": twice,
        }
        log = self._folder / "service.log"
        try:
            with served(self._settings, log, self._progress.say_for("service")) as service:
                for name in names:
                    say = self._progress.say_for(name)
                    say("begins")
                    self._ended(name, settle(name, partial(checks[name], service, say)))
        except (LaunchError, ServedError) as error:
            note = f"{error} (see {log})"
            self.rows.append(CheckResult(name="a service to ask", bound="runs", verdict="fail", note=note))

    def _ended(self, name: str, rows: list[CheckResult]) -> None:
        self.rows += rows
        self._progress.ended(name, {**BENCH, **SERVICE}[name], rows)


def main(settings: Settings, only: list[str] | None = None, out: Path | None = None) -> int:
    """Run all checks, or `only` some, into folder `out` (default: results/selftest-<UTC>-<commit>).

    Returns the exit code: 0, or 1 where a row failed. Raises ValueError, with the remedy, for an unknown
    check or settings that cannot work.
    """
    bench, service = chosen(only)
    console, began = Console(), monotonic()
    folder = out or new_folder()
    folder.mkdir(parents=True, exist_ok=True)
    needed = [ENGINE_REST] if "parts" in service else []
    with closing(Progress(console)) as progress:
        run = _Selftest(settings, folder, progress)
        if bench or needed:
            run.bench([*bench, *needed])
        if service:
            run.over_http(service)
    report = new_report(run.rows, run.machine, settings.modes, round(monotonic() - began, 1))
    path = write(report, folder)
    print_table(report, console)
    counts = Counter(row.verdict for row in report.rows)
    print(
        json.dumps(
            {"path": str(path), "valid": not report.failed, "verdicts": counts, "seconds": report.seconds}
        )
    )
    return EXIT_FAILED if report.failed else 0
