"""Runs a plan against a service, or goes on with one that ended early: the door to a results folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtests.plan.cells import Plan, check
from loadtests.plan.prompts import PROMPT_FILE, read_prompts
from loadtests.run.disk import disk_full_named
from loadtests.run.environment import git_state
from loadtests.run.exporter import PORT
from loadtests.run.folder_lock import locked
from loadtests.run.part import PartOptions, SweepPart, SweepResult, now
from loadtests.run.progress import SweepProgress
from loadtests.run.readiness import WITHOUT_PROGRESS_SECONDS
from loadtests.run.resumption import reopen
from loadtests.run.rows import ROWS_FILE
from loadtests.run.run_file import PLAN_FILE, SweepRun
from loadtests.run.target import Target, TargetError
from service.records import METHOD

Service = str | AbstractContextManager[str]
"""The address of a service, or a block that starts one, gives its address, and ends it."""


def new_folder(root: Path | str = "results", *, remote: bool = False) -> Path:
    """A new folder `<root>/<UTC>-<commit>`; `<UTC>-remote` for a service whose commit is not ours."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    commit = "remote" if remote else git_state()["commit"] or "nocommit"
    folder = Path(root) / f"{stamp}-{commit[:8]}"
    folder.mkdir(parents=True)
    return folder


def run_sweep(
    service: Service,
    plan: Plan,
    folder: Path,
    *,
    console: Console | None = None,
    prompt_file: Path = PROMPT_FILE,
    exporter_port: int = PORT,
    without_progress_seconds: float = WITHOUT_PROGRESS_SECONDS,
    settings: dict[str, Any] | None = None,
    started_with: dict[str, dict[str, str]] | None = None,
    overrides: dict[str, Any] | None = None,
    plan_text: str | None = None,
    plan_from_file: bool = False,
    workers: int = 1,
) -> SweepResult:
    """Sweep `service` by `plan` into `folder`, which is created where it is missing.

    `settings` (how the service was started), `started_with`, `overrides` and `plan_from_file` are kept in
    `run.json`, and `plan_text`, the plan as a file, in `plan.toml`. With more than one of `workers`, so many
    load processes post the requests. The API key is taken from LAUNCHBOUND_API_KEY. The service may take as
    long to be ready as something of it changes at least every `without_progress_seconds`. Ctrl-C stops the
    sweep: rows so far are kept and the result is marked incomplete. Raises PlanError, PromptError or
    TargetError before anything is measured, FolderInUse where another sweep writes to the folder, DiskFull.
    """
    check(plan)
    read_prompts(prompt_file)
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder) as lock:
        if (folder / ROWS_FILE).exists():
            raise TargetError(
                f"{folder} holds a sweep already: name a new folder, or go on with it by --resume {folder}"
            )
        kept = {
            **(settings or {}),
            "prompt_file": prompt_file.name,
            "exporter_port": exporter_port,
            "workers": workers,
        }
        run = SweepRun(
            run=f"{now()}-{os.urandom(3).hex()}",
            url="",
            plan=plan,
            seed=plan.seed,
            started=now(),
            load_tests=git_state(),
            method=METHOD,
            settings=kept,
            service=started_with,
            overrides=overrides or {},
            plan_from_file=plan_from_file,
        )
        if plan_text is not None:
            (folder / PLAN_FILE).write_text(plan_text, encoding="utf-8")
        options = PartOptions(prompt_file, exporter_port, without_progress_seconds, lock)
        return _run_part(service, run, folder, options, console)


def resume_sweep(
    service: Service,
    folder: Path,
    *,
    console: Console | None = None,
    prompt_file: Path = PROMPT_FILE,
    exporter_port: int = PORT,
    without_progress_seconds: float = WITHOUT_PROGRESS_SECONDS,
    workers: int | None = None,
) -> SweepResult:
    """Go on with the sweep of `folder`: what it owes is measured, and nothing that it has is measured again.

    `workers` as in `run_sweep`; None: as many as the sweep had.

    Raises CannotResume where it is complete, or where commit, machine, prompts or service are not those it
    began with; else as `run_sweep`.
    """
    with _held(folder) as lock:
        run = reopen(folder, git_state(), prompt_file)
        if workers is not None:
            run.settings["workers"] = workers
        options = PartOptions(prompt_file, exporter_port, without_progress_seconds, lock)
        return _run_part(service, run, folder, options, console)


@contextmanager
def _held(folder: Path) -> Iterator[int]:
    """Hold the folder's lock, and name a full disk."""
    with disk_full_named(folder), locked(folder) as lock:
        yield lock


def _run_part(
    service: Service, run: SweepRun, folder: Path, options: PartOptions, console: Console | None
) -> SweepResult:
    key = os.environ.get("LAUNCHBOUND_API_KEY")
    if isinstance(service, str):
        Target(service, key)  # refused before the folder is written to
        service = nullcontext(service)
    with service as url, SweepProgress(console or Console(), run.plan) as progress:
        return SweepPart(Target(url, key), run, folder, progress, options).run()
