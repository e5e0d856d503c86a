"""Runs a plan against a service, or goes on with a sweep that ended early, and says how far it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console

from loadtests.plan.cells import PROMPT_FILE, Plan
from loadtests.run.calls import of_module
from loadtests.run.events import (
    EVENTS_FILE,
    Assignment,
    BlockCut,
    GeneratorEvent,
    GeneratorFinished,
    GeneratorStarted,
    InterimCheckEnded,
    PartEvent,
    RequestEnded,
    WarmupPassEnded,
    run_load_generator,
)
from loadtests.run.exporter import PORT
from loadtests.run.folder import DiskFull, disk_full_named, git_state, locked, now
from loadtests.run.gates import CheckedRows, Gate, check_rows, write_validation
from loadtests.run.machine import clocks_file, clocks_query, clocks_summary, off_cores, watched, weights_bytes
from loadtests.run.resumption import record, refuse_other_service, reopen, take_in_rows
from loadtests.run.rows import ROWS_FILE, LineWriter
from loadtests.run.run_file import INTERRUPTED, PLAN_FILE, CutBlock, Part, SweepRun, write_run
from loadtests.run.schedule import is_whole
from loadtests.run.target import (
    Target,
    TargetError,
    scrape,
    settled_scrape,
    wait_until_ready,
    without_doubles,
    without_failed,
)
from service.records import METHOD

LINE_SECONDS = 5.0
"""At most one line of progress per interval, and at least one per two intervals."""


class SweepProgress:
    """Shows waiting, warming up and measuring of one sweep on `console`."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console = console
        self._plan = plan
        self._began, self._printed_at = monotonic(), 0.0
        self._planned, self._measured, self._errors, self._rejected = plan.requests, 0, 0, 0

    def replan(self, plan: Plan) -> None:
        """Show another plan, before anything of it is measured."""
        self._plan, self._planned = plan, plan.requests

    def already_measured(self, run: SweepRun, requests: int) -> None:
        """Leave out the measured `requests` of earlier parts, and what was cut from `run`."""
        self._planned -= requests
        self._leave_out(run.cut_visits)
        self.print_line(f"going on: {requests} requests were measured before")

    def print_line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._printed_at = monotonic()

    def waiting(self, state: str) -> None:
        self._update(f"getting ready, {state}")

    def show(self, event: GeneratorEvent | None) -> None:
        """Show an event of the load generator; None: there was none for a second."""
        match event:
            case None if self._line_is_due:
                self.print_line(f"still running, {monotonic() - self._began:.0f} s")
            case GeneratorStarted(cpus=cpus, note=note):
                self.print_line(f"load generator on cores {', '.join(map(str, cpus))}; {note}")
            case WarmupPassEnded(number=number, over=over, settled=settled, reason=reason):
                verdict = "" if not over else ("; settled" if settled else "; not settled, measuring anyway")
                self.print_line(f"warm-up pass {number}: {reason}{verdict}")
                self._began = monotonic()
            case RequestEnded(stage="measure"):
                self._measured += 1
                self._errors += event.error is not None and not event.rejected
                self._rejected += event.rejected
                self._update(self._line(event))
            case RequestEnded(stage=stage):
                stage_name = "sampled" if stage == "sample" else "warm-up"
                self._update(f"{stage_name} · {event.cell} {event.latency_seconds * 1e3:.1f} ms")
            case InterimCheckEnded(look=check, requests=requests):
                self._planned += requests
                if requests:
                    groups = ", ".join(check.undecided)
                    self.print_line(f"after round {check.round} not resolved, and measured further: {groups}")
            case BlockCut(visit=cut):
                self._leave_out([cut])
                self.print_line(f"round {cut.round}, {cut.cell}: cut after {cut.sent} requests, {cut.reason}")
            case GeneratorFinished(aborted=str(reason)):
                self.print_line(f"stopped: {reason}")
            case GeneratorFinished():
                spent = monotonic() - self._began
                refused = f", {self._rejected} refused past saturation" if self._rejected else ""
                self.print_line(
                    f"measured {self._measured} requests in {spent:.0f} s, {self._errors} failed{refused}"
                )

    def _leave_out(self, cuts: Sequence[CutBlock]) -> None:
        """Plan no request that is not sent because of `cuts`."""
        requests = {cell.name: cell.requests for cell in self._plan.cells}
        self._planned -= sum(requests[cut.cell] - cut.sent for cut in cuts)

    def _line(self, event: RequestEnded) -> str:
        errors = f", {self._errors} failed" if self._errors else ""
        until = next((check for check in self._plan.interim_checks if check >= event.round), event.round)
        return f"round {event.round}/{until}{errors} · {event.cell}"

    def _update(self, text: str) -> None:
        if not self._line_is_due:
            return
        if done := self._measured:
            seconds = (monotonic() - self._began) * (self._planned - done) / done
            text += f" · {done}/{self._planned} requests · about {seconds:.0f} s left"
        self.print_line(text)

    @property
    def _line_is_due(self) -> bool:
        return monotonic() - self._printed_at > LINE_SECONDS


LOAD_GENERATOR_LOG = "load_generator.log"

Service = str | AbstractContextManager[str]
"""The address of a service, or a block that starts one, gives its address, and ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where plan and service come from; kept in `run.json`, and `plan_text`, a plan file, in `plan.toml`.

    `service` and the rest as in SweepRun.
    """

    plan_text: str | None = None
    plan_from_file: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)
    service: dict[str, dict[str, str]] | None = None


@dataclass(frozen=True, slots=True)
class SweepResult:
    folder: Path
    run: SweepRun
    gates: tuple[Gate, ...]

    @property
    def failed(self) -> list[Gate]:
        return [gate for gate in self.gates if gate.failed]


def run_sweep(
    service: Service,
    plan: Plan,
    folder: Path,
    *,
    console: Console | None = None,
    origin: Origin | None = None,
    exporter_port: int = PORT,
    workers: int = 1,
) -> SweepResult:
    """Sweep `service` by `plan` into `folder`, which is created where it is missing.

    With more than one of `workers`, so many load processes post the requests. The API key is taken from
    LAUNCHBOUND_API_KEY. Ctrl-C stops the sweep: rows so far are kept and the result is marked incomplete.
    Raises TargetError before anything is measured, RunError where another sweep writes to the folder,
    DiskFull.
    """
    origin = origin or Origin()
    folder.mkdir(parents=True, exist_ok=True)
    with disk_full_named(folder), locked(folder) as lock:
        if (folder / ROWS_FILE).exists():
            raise TargetError(
                f"{folder} holds a sweep already: name a new folder, or go on with it by --resume {folder}"
            )
        if origin.plan_text is not None:
            (folder / PLAN_FILE).write_text(origin.plan_text, encoding="utf-8")
        run = SweepRun(
            run=f"{now()}-{os.urandom(3).hex()}",
            url="",
            plan=plan,
            seed=plan.seed,
            started=now(),
            load_tests=git_state(),
            method=METHOD,
            settings={
                **(origin.service["options"] if origin.service else {}),
                "prompt_file": PROMPT_FILE.name,
                "exporter_port": exporter_port,
                "workers": workers,
            },
            service=origin.service,
            overrides=origin.overrides,
            plan_from_file=origin.plan_from_file,
        )
        return _run_part(service, run, folder, console, exporter_port, lock)


def resume_sweep(
    service: Service,
    folder: Path,
    *,
    console: Console | None = None,
    exporter_port: int = PORT,
    workers: int | None = None,
) -> SweepResult:
    """Go on with the sweep of `folder`: requests that have a row are not sent again.

    `workers` as in `run_sweep`; None: as many as the sweep had. Raises RunError where it is complete, or
    where commit, machine or service are not those it began with; else as `run_sweep`.
    """
    with disk_full_named(folder), locked(folder) as lock:
        run = reopen(folder, git_state())
        if workers is not None:
            run.settings["workers"] = workers
        return _run_part(service, run, folder, console, exporter_port, lock)


def _run_part(
    service: Service, run: SweepRun, folder: Path, console: Console | None, exporter_port: int, lock: int
) -> SweepResult:
    key = os.environ.get("LAUNCHBOUND_API_KEY")
    started = nullcontext(service) if isinstance(service, str) else service
    progress = SweepProgress(console or Console(), run.plan)
    with started as url:
        return SweepPart(Target(url, key), run, folder, progress, exporter_port, lock).run()


class SweepPart:
    """The next part of `run`, against the service at `target`; `lock` is the folder's descriptor."""

    def __init__(
        self,
        target: Target,
        run: SweepRun,
        folder: Path,
        progress: SweepProgress,
        exporter_port: int,
        lock: int,
    ) -> None:
        self._target, self._run, self._folder, self._progress = target, run, folder, progress
        self._exporter_port, self._lock = exporter_port, lock
        self._part = Part(number=len(run.parts) + 1, started=now())
        self._disk_full = False

    def run(self) -> SweepResult:
        """Wait for the service, measure, and validate. Raises RunError (another service) and DiskFull."""
        run, part = self._run, self._part
        document = wait_until_ready(self._target, run.plan, self._progress.waiting)
        part.ready = now()
        if part.number > 1:
            refuse_other_service(self._folder, run, document)
            self._progress.already_measured(run, check_rows(self._folder).finished.requests)
        else:
            run.environment = document.get("service") or {}
            say = self._progress.print_line
            plan = without_doubles(document, without_failed(document, run.plan, say), say)
            run.plan = of_module(self._target, document["engine"], plan, say)
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
        """Note in `run.json` that a part has begun; `document` is that of GET /v1/modes."""
        run, part = self._run, self._part
        run.url, run.engine = self._target.url, document["engine"]
        run.parts.append(part)
        run.ended, run.complete, run.stopped_because = None, False, None
        if part.number == 1:
            run.modes_before = document["modes"]
        write_run(self._folder, run)

    def _measure(self) -> None:
        part = self._part
        log = self._folder / LOAD_GENERATOR_LOG
        finished = False
        try:
            with (
                off_cores(self._run.engine.get("cpus") or []),
                watched(self._clocks_query(), clocks_file(self._folder, part.number)),  # off them as well
                LineWriter(self._folder / EVENTS_FILE) as kept,
                closing(run_load_generator(self._assignment(), log, [self._lock])) as events,
            ):
                for event in events:
                    self._progress.show(event)
                    if event is None or isinstance(event, RequestEnded):
                        continue
                    kept.write(PartEvent(part.number, event))
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
        run, engine = self._run, self._run.engine
        merges = engine.get("batching", "off") != "off"
        return Assignment(
            run=run.run,
            url=self._target.url,
            folder=str(self._folder),
            plan=run.plan,
            exporter_port=self._exporter_port,
            avoid_cpus=run.engine.get("cpus") or [],
            sampled="no_samples" in engine and engine["no_samples"] is None,
            canary_bytes=weights_bytes(run.engine),
            part=self._part.number,
            workers=run.settings.get("workers", 1),
            rates=run.client.rates,
            cut_visits=run.cut_visits,
            rows_at_once=max(engine.get("batch_buckets") or [1]) if merges else 1,
        )

    def _clocks_query(self) -> list[str]:
        """What samples the service's GPU; empty without one, and where it may be another machine's."""
        local_gpu = self._run.engine.get("device") == "cuda" and self._target.is_local
        command, why = clocks_query() if local_gpu else ([], None)
        if why is not None:
            self._progress.print_line(f"no clocks of the GPU during the sweep: {why}")
        return command

    def _finish(self, before: str | None, rows: CheckedRows) -> None:
        """Scrape once the server has counted all requests, read its modes again, and write `run.json`."""
        run, part = self._run, self._part
        part_rows = rows.counters.sent(part.number)
        settled_scrape(self._target, self._folder, before, part_rows, part.number, self._progress.print_line)
        run.complete = part.stopped_because is None and is_whole(run, rows.finished)
        run.stopped_because = part.stopped_because
        part.gpus = clocks_summary(clocks_file(self._folder, part.number))
        try:
            document = self._target.modes()
            shared = run.engine.get("sharing_note")
            run.engine = document["engine"] or run.engine
            if run.engine.get("sharing_note") is None:  # others that were there at the start may have ended
                run.engine["sharing_note"] = shared
            run.modes = document["modes"]
        except TargetError as error:
            self._progress.print_line(f"the service is unreachable after the sweep: {error}")
        take_in_rows(run, rows.finished)
        run.ended = part.ended = now()
        write_run(self._folder, run)
