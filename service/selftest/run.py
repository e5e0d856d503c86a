"""Runs the chosen checks, the worker's first, then the service's; prints the table, one JSON line last."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager, closing
from pathlib import Path
from time import monotonic

import msgspec
from rich.console import Console

from service.front.launch import LaunchError
from service.front.settings import Settings
from service.measure.rounds import Log
from service.protocol.parent_death import owned
from service.selftest.aa_test import ITSELF, TWICE
from service.selftest.added_latency import ADDED
from service.selftest.bare_engine import BareEngine, bare_engine
from service.selftest.check import AnyCheck, run_check
from service.selftest.checks import ALL_CHECKS, ENGINE_CHECKS, choose_checks
from service.selftest.events import CheckFinished, MachineFacts, WorkerEvent
from service.selftest.load import CONCURRENCY_CHECK, SATURATION, SCRAPE
from service.selftest.report import new_folder, new_report, write
from service.selftest.request_parts import parts_check
from service.selftest.results import CheckResult, broken
from service.selftest.running_service import ServiceFailed, running_service
from service.selftest.served_samples import served_samples_check
from service.selftest.terminal import ProgressPrinter, print_table

EXIT_FAILED = 1

ROWS_FILE = "rows.jsonl"
"""The rows of each check as soon as it has ended; `selftest.json` has all of them."""


def service_checks(settings: Settings, engine_log: Path) -> dict[str, AnyCheck]:
    """The checks over HTTP; an engine without a service, which one needs, writes to `engine_log`."""

    def start_engine(cpus: list[int], log: Log) -> AbstractContextManager[BareEngine]:
        alone = msgspec.structs.replace(settings.engine_settings(""), cpus=cpus)
        return bare_engine(alone, engine_log, log)

    return {
        "parts": parts_check(start_engine),
        "added": ADDED,
        "saturation": SATURATION,
        "scrape": SCRAPE,
        "concurrency": CONCURRENCY_CHECK,
        "eager-eager": ITSELF,
        "twice": TWICE,
        "served-samples": served_samples_check(settings),
    }


class _Selftest:
    """One run: the rows found so far, and the checks that they are of."""

    def __init__(self, settings: Settings, folder: Path, progress: ProgressPrinter) -> None:
        self._settings = settings
        self._folder = folder
        self._progress = progress
        self.rows: list[CheckResult] = []
        self.finished: set[str] = set()
        self.machine: dict[str, str | int] = {}

    def in_worker(self, names: list[str]) -> None:
        """Run `names` in a worker process. Raises ValueError where its settings cannot work."""
        settings = msgspec.json.encode(self._settings.engine_settings("")).decode()
        command = owned([sys.executable, "-m", "service.selftest.worker", settings, ",".join(names)])
        decode = msgspec.json.Decoder(WorkerEvent).decode
        log_file = self._folder / "worker.log"
        with (
            log_file.open("ab") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self._take(decode(line))
            finally:
                process.terminate()
        if process.returncode == 2:
            raise ValueError(log_file.read_text(errors="replace").strip().splitlines()[-1])
        for name in (name for name in names if name in ENGINE_CHECKS and name not in self.finished):
            self._ended(name, [broken(name, f"the worker process ended early, see {log_file}")])

    def _take(self, event: WorkerEvent) -> None:
        if isinstance(event, MachineFacts):
            self.machine = event.facts
        elif isinstance(event, CheckFinished):
            self._ended(event.name, event.rows)
        else:
            self._progress.running(event.name, event.text)

    def over_http(self, names: list[str]) -> None:
        """Run `names` against a service started for them."""
        checks = service_checks(self._settings, self._folder / "engine.log")
        log_file = self._folder / "service.log"
        try:
            with running_service(self._settings, log_file, self._progress.log_of("service")) as service:
                for name in names:
                    log = self._progress.log_of(name)
                    log("begins")
                    self._ended(name, run_check(name, checks[name], service, log))
        except (LaunchError, ServiceFailed) as error:
            self.rows.append(broken("a running service", f"{error} (see {log_file})"))

    def _ended(self, name: str, rows: list[CheckResult]) -> None:
        # On disk at once: what breaks later loses no row.
        with (self._folder / ROWS_FILE).open("ab") as file:
            file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
        self.rows += rows
        self.finished.add(name)
        self._progress.ended(name, ALL_CHECKS[name], rows)


def main(settings: Settings, only: list[str] | None = None, out: Path | None = None) -> int:
    """Run all checks, or `only` some, into folder `out` (default: results/selftest-<UTC>-<commit>).

    Returns the exit code: 1 where a row failed, else 0, also where rows are undecided or were not run: the
    last line says which. Raises ValueError, with the remedy, for an unknown
    check or settings that cannot work.
    """
    in_worker, over_http = choose_checks(only)
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
    seconds = round(monotonic() - began, 1)
    report = new_report(run.rows, run.finished, run.machine, settings, seconds)
    path = write(report, folder)
    print_table(report, console)
    print(json.dumps({"path": str(path), "seconds": seconds, **report.summary}))
    return EXIT_FAILED if report.outcome == "failed" else 0
