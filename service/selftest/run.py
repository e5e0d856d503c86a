"""Runs the chosen checks, the worker's first, then the service's; prints the table, one JSON line last."""

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
from service.measure.rounds import Log
from service.selftest.aa_test import against_itself, twice
from service.selftest.checks import (
    ENGINE_CHECKS,
    ENGINE_OVERHEAD,
    SERVICE_CHECKS,
    CheckFinished,
    EngineOverhead,
    MachineFacts,
    WorkerEvent,
    choose_checks,
    run_check,
)
from service.selftest.load import concurrency, scrape
from service.selftest.report import ProgressPrinter, new_folder, new_report, print_table, write
from service.selftest.request_parts import request_parts
from service.selftest.results import CheckResult, broken
from service.selftest.running_service import RunningService, ServiceFailed, running_service

EXIT_FAILED = 1


class _Selftest:
    """One run: the rows found so far."""

    def __init__(self, settings: Settings, folder: Path, progress: ProgressPrinter) -> None:
        self._settings = settings
        self._folder = folder
        self._progress = progress
        self._engine_seconds: dict[str, float] = {}
        self.rows: list[CheckResult] = []
        self.machine: dict[str, str | int] = {}

    def in_worker(self, names: list[str]) -> None:
        """Run `names` in a worker process. Raises ValueError where its settings cannot work."""
        settings = msgspec.json.encode(self._settings.engine_settings("")).decode()
        command = [sys.executable, "-m", "service.selftest.worker", settings, ",".join(names)]
        decode = msgspec.json.Decoder(WorkerEvent).decode
        finished: set[str] = set()
        log_file = self._folder / "worker.log"
        with (
            log_file.open("wb") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self._take(decode(line), finished)
            finally:
                process.terminate()
        if process.returncode == 2:
            raise ValueError(log_file.read_text(errors="replace").strip().splitlines()[-1])
        for name in (name for name in names if name in ENGINE_CHECKS and name not in finished):
            self.rows.append(broken(name, f"the worker process ended early, see {log_file}"))

    def _take(self, event: WorkerEvent, finished: set[str]) -> None:
        if isinstance(event, MachineFacts):
            self.machine = event.facts
        elif isinstance(event, EngineOverhead):
            self._engine_seconds = event.seconds
        elif isinstance(event, CheckFinished):
            finished.add(event.name)
            self._ended(event.name, event.rows)
        else:
            self._progress.running(event.name, event.text)

    def over_http(self, names: list[str]) -> None:
        """Run `names` against a service started for them."""
        checks: dict[str, Callable[[RunningService, Log], list[CheckResult]]] = {
            "parts": lambda service, log: request_parts(service, log, self._engine_seconds),
            "scrape": scrape,
            "concurrency": concurrency,
            "eager-eager": against_itself,
            "twice": twice,
        }
        log_file = self._folder / "service.log"
        try:
            with running_service(self._settings, log_file, self._progress.log_of("service")) as service:
                for name in names:
                    log = self._progress.log_of(name)
                    log("begins")
                    self._ended(name, run_check(name, partial(checks[name], service, log)))
        except (LaunchError, ServiceFailed) as error:
            self.rows.append(broken("a running service", f"{error} (see {log_file})"))

    def _ended(self, name: str, rows: list[CheckResult]) -> None:
        self.rows += rows
        self._progress.ended(name, {**ENGINE_CHECKS, **SERVICE_CHECKS}[name], rows)


def main(settings: Settings, only: list[str] | None = None, out: Path | None = None) -> int:
    """Run all checks, or `only` some, into folder `out` (default: results/selftest-<UTC>-<commit>).

    Returns the exit code: 0, or 1 where a row failed. Raises ValueError, with the remedy, for an unknown
    check or settings that cannot work.
    """
    in_worker, over_http = choose_checks(only)
    if "parts" in over_http:
        in_worker.append(ENGINE_OVERHEAD)
    console = Console()
    began = monotonic()
    folder = out or new_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with closing(ProgressPrinter(console)) as progress:
        run = _Selftest(settings, folder, progress)
        if in_worker:
            run.in_worker(in_worker)
        if over_http:
            run.over_http(over_http)
    report = new_report(run.rows, run.machine, settings.modes, round(monotonic() - began, 1))
    path = write(report, folder)
    print_table(report, console)
    counts = Counter(row.verdict for row in report.rows)
    summary = {"path": str(path), "valid": not report.failed, "verdicts": counts, "seconds": report.seconds}
    print(json.dumps(summary))
    return EXIT_FAILED if report.failed else 0
