"""Goes on with a sweep that ended early: restores its run from events and rows, refuses what is unlike it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loadtests.run.events import (
    EVENTS_FILE,
    BlockCut,
    GeneratorFinished,
    GeneratorStarted,
    InterimCheckEnded,
    KeptEvent,
    MeasuringBegan,
    RoundEnded,
    WarmupPassEnded,
    read_events,
)
from loadtests.run.gates import check_rows
from loadtests.run.machine import clocks_file, clocks_summary
from loadtests.run.rows import ROWS_FILE, cut_torn_line
from loadtests.run.run_file import Client, Part, RunError, SweepRun, read_run
from loadtests.run.schedule import Finished, is_whole
from loadtests.run.target import linear_layout

KILLED = "no end is recorded: it is still running, was killed, or the machine went down"


def record(run: SweepRun, part: Part, event: KeptEvent) -> None:
    """Keep what an event of `part` says; an earlier one of the same round, check or block is replaced."""
    match event:
        case GeneratorStarted(cpus=cpus):
            run.client.cpus = cpus
        case WarmupPassEnded(number=number, settled=settled, reason=reason):
            part.warmup_passes, part.warmup_settled, part.warmup_reason = number, settled, reason
        case MeasuringBegan(rates=rates, canary_bytes_per_second=canary):
            run.client.rates = rates
            part.canary_before = canary
        case BlockCut(visit=cut):
            key = (cut.round, cut.cell)
            run.cut_visits = [*(one for one in run.cut_visits if (one.round, one.cell) != key), cut]
        case RoundEnded(machine=machine):
            run.rounds = machine.round
            others = [one for one in run.machine_by_round if one.round != machine.round]
            run.machine_by_round = [*others, machine]
            run.client.cpu_share = _cpu_share(run)
        case InterimCheckEnded(look=check):
            run.looks = [*(one for one in run.looks if one.round != check.round), check]
        case GeneratorFinished(canary_bytes_per_second=canary, aborted=aborted):
            part.canary_after = canary
            part.stopped_because = aborted


def _cpu_share(run: SweepRun) -> float | None:
    """The load generator's share of one core over all finished rounds."""
    known = [one for one in run.machine_by_round if one.client_cpu_seconds is not None and one.seconds]
    seconds = sum(one.seconds or 0.0 for one in known)
    return sum(one.client_cpu_seconds or 0.0 for one in known) / seconds if known else None


def take_in_rows(run: SweepRun, finished: Finished) -> None:
    """Set what follows from a run's rows: its order, and how warm-up ended.

    Warm-up has the passes of the last part and is settled where that of every part is. Parts that measured
    nothing, as one that was killed in its warm-up, do not count, unless none measured anything.
    """
    run.order = finished.order
    begun = [part for part in run.parts if part.warmup_passes]
    warmed = [part for part in begun if part.number in finished.parts] or begun
    if not warmed:
        return
    unsettled = next((part for part in warmed if not part.warmup_settled), warmed[-1])
    run.client.warmup_passes = warmed[-1].warmup_passes
    run.client.warmup_settled = all(part.warmup_settled for part in warmed)
    run.client.warmup_reason = unsettled.warmup_reason


def recover(folder: Path, run: SweepRun, finished: Finished) -> None:
    """Complete a `run.json` that a killed sweep left as it was at its start, from events and rows.

    A run that ended in order is left as it is. Raises RowsError for a broken file of events.
    """
    if run.ended is not None or not run.parts:
        return
    parts = {part.number: part for part in run.parts}
    run.client, run.machine_by_round, run.looks, run.cut_visits = Client(), [], [], []
    for one in read_events(folder):
        if one.part in parts:
            record(run, parts[one.part], one.event)
    for part in run.parts:
        if part.ended is None and part.stopped_because is None:
            part.stopped_because = KILLED
            part.gpus = clocks_summary(clocks_file(folder, part.number))
    take_in_rows(run, finished)
    run.stopped_because = run.parts[-1].stopped_because


# Rows of before and after cannot be compared where one of these differs.
_CODE = ("commit", "changes")
_MACHINE = ("commit", "dirty", "machine", "cpu", "cores")
_ENGINE = (
    "model", "model_hash", "parameters", "layers", "width", "context", "prefill_chunk", "batch_buckets",
    "device", "device_name", "dtype", "torch", "cuda", "threads", "cpus", "modes", "no_samples",
)  # fmt: skip

_NOT_OF_THE_STEP = {"API_KEY", "CACHE_FOLDER", "HOST", "PORT", "RUN", "URL"}
"""Variables that change no number, name a folder of this machine, or are a secret."""

_LINEARS = "LAUNCHBOUND_LINEARS"
"""Not compared as set: the layout that the service has in the end is."""


def service_environment() -> dict[str, str]:
    """The `LAUNCHBOUND_…` variables that a service started now takes its settings from."""
    prefix = "LAUNCHBOUND_"
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(prefix) and name.removeprefix(prefix) not in _NOT_OF_THE_STEP
    }


def reopen(folder: Path, load_tests: Mapping[str, Any]) -> SweepRun:
    """The run of `folder` by its rows and events; torn last lines are cut off first.

    `load_tests` is the commit of this code and a digest of its changes. Raises RunError where the run is
    complete, has no parts, cannot become valid because a request failed, or was begun with other code or
    other variables, and RowsError where it cannot be read.
    """
    run = read_run(folder)
    for name in (ROWS_FILE, EVENTS_FILE):
        cut_torn_line(folder / name)
    rows = check_rows(folder)
    if not run.parts:
        raise RunError(f"{folder} was written before sweeps could be resumed: run the sweep again")
    recover(folder, run, rows.finished)
    if run.complete and is_whole(run, rows.finished):
        raise RunError(
            f"{folder} is complete: nothing is left to measure, `launchbound report {folder}` reports it"
        )
    if failed := rows.requests.failed:
        raise RunError(
            f"{failed} requests of {folder} failed, so that it can never be valid: run the sweep again"
        )
    refuse(folder, run.load_tests, load_tests, _CODE)
    if run.service is not None:
        then, now = run.service["environment"], service_environment()
        refuse(folder, then, now, sorted((then.keys() | now.keys()) - {_LINEARS}))
    return run


def refuse_other_service(folder: Path, run: SweepRun, document: Mapping[str, Any]) -> None:
    """Raise RunError where the service is not the one that `run` began with: its machine and status.

    `document` is that of GET /v1/modes.
    """
    engine = document["engine"]
    refuse(folder, run.environment, document.get("service") or {}, _MACHINE)
    refuse(folder, run.engine, engine, _ENGINE)
    refuse(folder, {_LINEARS: linear_layout(run.engine)}, {_LINEARS: linear_layout(engine)}, [_LINEARS])


def refuse(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise RunError where `then` and `now` differ in one of `names`."""
    differing = [
        f"{name} was {_shown(then.get(name))}, and is {_shown(now.get(name))} now"
        for name in names
        if then.get(name) != now.get(name)
    ]
    if differing:
        raise RunError(
            f"{folder} cannot be gone on with: {'; '.join(differing)}. Rows of before and after could not be "
            "compared: restore what it was, or run a new sweep"
        )


def _shown(value: object) -> str:
    return "not set" if value is None else str(value)
