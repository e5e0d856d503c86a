"""One part of a sweep, from its start to its end or to what ends it early: waits, measures, and validates."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadtests.run.assignment import Assignment, GeneratorFinished, RequestEnded
from loadtests.run.disk import DiskFull
from loadtests.run.events_file import EventWriter
from loadtests.run.finished import is_whole
from loadtests.run.gpu_watch import clocks_file, query_of, summary, watched
from loadtests.run.growing_queue import rows_at_once
from loadtests.run.history import record, take_in_rows
from loadtests.run.load_generator_process import run_load_generator
from loadtests.run.machine import weights_bytes
from loadtests.run.placement import off_cores
from loadtests.run.progress import SweepProgress
from loadtests.run.readiness import wait_until_ready, without_doubles
from loadtests.run.requests import can_sample
from loadtests.run.resumption import refuse_other_service
from loadtests.run.run_file import INTERRUPTED, Part, SweepRun, write_run
from loadtests.run.scrapes import scrape, settled_scrape
from loadtests.run.target import Target, TargetError
from loadtests.run.validation import CheckedRows, Gate, check_rows, write_validation

LOAD_GENERATOR_LOG = "load_generator.log"


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The results folder, the run and its gates."""

    folder: Path
    run: SweepRun
    gates: tuple[Gate, ...]

    @property
    def failed(self) -> list[Gate]:
        """Gates that make the sweep invalid."""
        return [gate for gate in self.gates if gate.failed]

    @property
    def exit_code(self) -> int:
        """0, or 1 where a gate failed."""
        return 1 if self.failed else 0


@dataclass(frozen=True, slots=True)
class PartOptions:
    """What a part needs besides its run; `lock` is the descriptor of the folder's lock."""

    prompt_file: Path
    exporter_port: int
    without_progress_seconds: float
    lock: int


class SweepPart:
    """The next part of `run`, against the service at `target`."""

    def __init__(
        self, target: Target, run: SweepRun, folder: Path, progress: SweepProgress, options: PartOptions
    ) -> None:
        self._target, self._run, self._folder = target, run, folder
        self._progress = progress
        self._options = options
        self._part = Part(number=len(run.parts) + 1, started=now())
        self._disk_full = False

    def run(self) -> SweepResult:
        """Wait for the service, measure, and validate. Raises CannotResume (another service) and DiskFull."""
        run, part = self._run, self._part
        document = wait_until_ready(
            self._target, run.plan, self._progress.waiting, self._options.without_progress_seconds
        )
        part.ready = now()
        if part.number > 1:
            refuse_other_service(self._folder, run, document, self._target.metrics())
            self._progress.already_measured(run, check_rows(self._folder).finished.requests)
        else:
            run.environment = document.get("service") or {}
            run.plan = without_doubles(document, run.plan, self._progress.print_line)
            self._progress.replan(run.plan)
        self._begin(document)
        before = scrape(self._target, self._folder, "before", part.number, self._progress.print_line)
        self._measure()
        rows = check_rows(self._folder)
        self._finish(before, rows)
        if self._disk_full:
            raise DiskFull(self._folder)
        gates = rows.gates_of(self._folder, run)
        write_validation(self._folder, gates)
        return SweepResult(self._folder, run, tuple(gates))

    def _begin(self, document: dict[str, Any]) -> None:
        """Say in `run.json` that a part has begun; `document` is that of GET /v1/modes."""
        run, part = self._run, self._part
        run.url, run.engine = self._target.url, document["engine"]
        run.parts.append(part)
        run.ended, run.complete, run.stopped_because = None, False, None
        if part.number == 1:
            run.modes_before, run.auto = document["modes"], document.get("auto")
        write_run(self._folder, run)

    def _measure(self) -> None:
        part = self._part
        log = self._folder / LOAD_GENERATOR_LOG
        finished = False
        try:
            with (
                off_cores(self._run.engine.get("cpus") or []),
                watched(self._clocks_query(), clocks_file(self._folder, part.number)),  # off them as well
                EventWriter(self._folder, part.number) as kept,
                closing(run_load_generator(self._assignment(), log, [self._options.lock])) as events,
            ):
                for event in events:
                    self._progress.show(event)
                    if event is None or isinstance(event, RequestEnded):
                        continue
                    kept.write(event)
                    record(self._run, part, event)
                    if isinstance(event, GeneratorFinished):
                        finished, self._disk_full = True, event.disk_full
        except KeyboardInterrupt:
            part.stopped_because = INTERRUPTED
            self._progress.print_line("interrupted: rows measured so far are kept")
            return
        if not finished:
            last = log.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
            part.stopped_because = f"the load generator ended early: {last or 'without a message'}"

    def _assignment(self) -> Assignment:
        run = self._run
        return Assignment(
            run=run.run,
            url=self._target.url,
            folder=str(self._folder),
            plan=run.plan,
            prompt_file=str(self._options.prompt_file),
            exporter_port=self._options.exporter_port,
            avoid_cpus=run.engine.get("cpus") or [],
            profile_first=run.engine.get("device") == "cuda",
            sampled=can_sample(run.engine),
            canary_bytes=weights_bytes(run.engine),
            part=self._part.number,
            workers=run.settings.get("workers", 1),
            rates=run.client.rates,
            cut_visits=run.cut_visits,
            rows_at_once=rows_at_once(run.engine),
        )

    def _clocks_query(self) -> list[str]:
        """What samples the service's GPU; empty without one, and where it may be another machine's."""
        local_gpu = self._run.engine.get("device") == "cuda" and self._target.is_local
        command, why = query_of() if local_gpu else ([], None)
        if why is not None:
            self._progress.print_line(f"no clocks of the GPU during the sweep: {why}")
        return command

    def _finish(self, before: str | None, rows: CheckedRows) -> None:
        """Scrape once the server has counted all requests, read its modes again, and write `run.json`."""
        run, part = self._run, self._part
        part_rows = rows.sent(part.number)
        settled_scrape(self._target, self._folder, before, part_rows, part.number, self._progress.print_line)
        run.complete = part.stopped_because is None and is_whole(run, rows.finished)
        run.stopped_because = part.stopped_because
        part.gpus = summary(clocks_file(self._folder, part.number))
        try:
            document = self._target.modes()
            run.engine = document["engine"] or run.engine
            run.modes = document["modes"]
        except TargetError as error:
            self._progress.print_line(f"the service is unreachable after the sweep: {error}")
        take_in_rows(run, rows.finished)
        run.ended = part.ended = now()
        write_run(self._folder, run)


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
