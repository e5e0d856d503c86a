"""Runs a plan against a service: waits, warms up, measures in rounds, and leaves a results folder."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtests.plan.cells import Plan, check
from loadtests.plan.prompts import PROMPT_FILE, read_prompts
from loadtests.run.assignment import (
    Assignment,
    GeneratorEvent,
    GeneratorFinished,
    GeneratorStarted,
    LookEnded,
    RoundEnded,
)
from loadtests.run.environment import git_state
from loadtests.run.exporter import PORT
from loadtests.run.floors import read_floors
from loadtests.run.load_generator_process import run_load_generator
from loadtests.run.machine import weights_bytes
from loadtests.run.placement import off_cores
from loadtests.run.progress import SweepProgress
from loadtests.run.readiness import wait_until_ready, without_doubles
from loadtests.run.rows import ROWS_FILE, read_rows
from loadtests.run.run_file import Client, SweepRun, write_run
from loadtests.run.scrapes import scrape, settled_scrape
from loadtests.run.target import Target, TargetError
from loadtests.run.validation import Gate, validate, write_validation
from service.statistics.method import METHOD

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


def new_folder(root: Path | str = "results", *, remote: bool = False) -> Path:
    """A new folder `<root>/<UTC>-<commit>`; `<UTC>-remote` for a service whose commit is not ours."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    commit = "remote" if remote else git_state()["commit"] or "nocommit"
    folder = Path(root) / f"{stamp}-{commit[:8]}"
    folder.mkdir(parents=True)
    return folder


def run_sweep(
    url: str,
    plan: Plan,
    folder: Path,
    *,
    console: Console | None = None,
    prompt_file: Path = PROMPT_FILE,
    exporter_port: int = PORT,
    ready_timeout_seconds: float = 900.0,
    settings: dict[str, Any] | None = None,
) -> SweepResult:
    """Sweep the service at `url` by `plan` into `folder`, which is created where it is missing.

    `settings` (how the service was started) is kept in `run.json` unchanged. The API key is taken from
    LAUNCHBOUND_API_KEY. Ctrl-C stops the sweep: rows so far are kept and the result is marked incomplete.
    Raises PlanError, PromptError or TargetError before anything is measured.
    """
    check(plan)
    read_prompts(prompt_file)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / ROWS_FILE).exists():
        raise TargetError(f"{folder} holds a sweep already: name a new folder")
    with SweepProgress(console or Console(), plan) as progress:
        return _Sweep(Target(url, os.environ.get("LAUNCHBOUND_API_KEY")), plan, folder, progress).run(
            prompt_file, exporter_port, ready_timeout_seconds, settings or {}
        )


class _Sweep:
    def __init__(self, target: Target, plan: Plan, folder: Path, progress: SweepProgress) -> None:
        self._target = target
        self._plan = plan
        self._folder = folder
        self._progress = progress
        self._run = SweepRun(
            method=METHOD,
            run=f"{_now()}-{os.urandom(3).hex()}",
            url=target.url,
            plan=plan,
            seed=plan.seed,
            started=_now(),
        )

    def run(
        self, prompt_file: Path, exporter_port: int, timeout_seconds: float, settings: dict[str, Any]
    ) -> SweepResult:
        """Wait for the service, measure, and validate."""
        run = self._run
        run.settings = {**settings, "prompt_file": prompt_file.name, "exporter_port": exporter_port}
        write_run(self._folder, run)
        document = wait_until_ready(self._target, self._plan, self._progress.waiting, timeout_seconds)
        run.engine = document["engine"]
        run.environment = document.get("service") or {}
        run.modes_before = document["modes"]
        self._plan = run.plan = without_doubles(document, self._plan, self._progress.print_line)
        self._progress.replan(self._plan)
        run.floors_before = self._floors("before the sweep")
        write_run(self._folder, run)
        before = scrape(self._target, self._folder, "before", self._progress.print_line)
        assignment = Assignment(
            run=run.run,
            url=self._target.url,
            folder=str(self._folder),
            plan=self._plan,
            prompt_file=str(prompt_file),
            exporter_port=exporter_port,
            avoid_cpus=run.engine.get("cpus") or [],
            profile_first=run.engine.get("device") == "cuda",
            canary_bytes=weights_bytes(run.engine),
        )
        self._measure(assignment)
        return self._validate(before)

    def _measure(self, assignment: Assignment) -> None:
        run = self._run
        finished = None
        try:
            with (
                off_cores(assignment.avoid_cpus),
                closing(run_load_generator(assignment, self._folder / LOAD_GENERATOR_LOG)) as events,
            ):
                for event in events:
                    self._progress.show(event)
                    if isinstance(event, GeneratorFinished):
                        finished = event
                    elif event is not None:
                        self._keep(event)
        except KeyboardInterrupt:
            run.stopped_because = "interrupted"
            self._progress.print_line("interrupted: rows measured so far are kept")
            return
        if finished is None:
            last = (
                (self._folder / LOAD_GENERATOR_LOG).read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
            )
            run.stopped_because = f"the load generator ended early: {last or 'without a message'}"
            return
        run.order = finished.order
        run.stopped_because = finished.aborted
        run.complete = finished.aborted is None
        run.client = Client(
            cpus=run.client.cpus,
            cpu_share=finished.cpu_share,
            rates=finished.rates,
            warmup_passes=finished.warmup_passes,
            warmup_settled=finished.warmup_settled,
            warmup_reason=finished.warmup_reason,
        )

    def _keep(self, event: GeneratorEvent) -> None:
        """Record what an event says of the run, so that it is known of a run that stops early too."""
        match event:
            case GeneratorStarted(cpus=cpus):
                self._run.client.cpus = cpus
            case RoundEnded(machine=machine):
                self._run.rounds = machine.round
                self._run.machine_by_round.append(machine)
            case LookEnded(look=look):
                self._run.looks.append(look)

    def _validate(self, before: str | None) -> SweepResult:
        """Scrape once the server has counted all requests, read its modes again, and check all gates."""
        run = self._run
        folder = self._folder
        rows = read_rows(folder) if (folder / ROWS_FILE).exists() else []
        note = self._progress.print_line
        after = settled_scrape(self._target, folder, before, len(rows), note)
        if run.complete:
            run.floors_after = self._floors("after the sweep")
        try:
            document = self._target.modes()
            run.engine = document["engine"] or run.engine
            run.modes = document["modes"]
        except TargetError as error:
            note(f"the service is unreachable after the sweep: {error}")
        if not run.order:
            measured = [row for row in rows if row.stage == "measure"]
            rounds = sorted({row.round for row in measured})
            run.order = [list(dict.fromkeys(r.cell for r in measured if r.round == n)) for n in rounds]
        run.ended = _now()
        write_run(folder, run)
        gates = validate(run, rows, before, after)
        write_validation(folder, gates)
        return SweepResult(folder, run, tuple(gates))

    def _floors(self, when: str) -> list[dict[str, Any]]:
        """The service's floors as they are now; none, and a line that says why, where it gives none."""
        try:
            return read_floors(self._target)
        except TargetError as error:
            self._progress.print_line(f"no floors {when}: {error}")
            return []


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
