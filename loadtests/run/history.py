"""What events and rows say of a run: kept as they come, and found again where a sweep ended early."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import msgspec

from loadtests.run.assignment import (
    GeneratorFinished,
    GeneratorStarted,
    KeptEvent,
    LookEnded,
    MeasuringBegan,
    RoundEnded,
    SloSettled,
    VisitCut,
    WarmupPassEnded,
)
from loadtests.run.events_file import read_events
from loadtests.run.finished import Finished
from loadtests.run.gpu_watch import clocks_file, summary
from loadtests.run.run_file import Client, Part, SweepRun

KILLED = "no end is recorded: it is still running, was killed, or the machine went down"


def record(run: SweepRun, part: Part, event: KeptEvent) -> None:
    """Keep what an event of `part` says; a round, a look or a visit that was kept before is replaced."""
    match event:
        case GeneratorStarted(cpus=cpus):
            run.client.cpus = cpus
        case WarmupPassEnded(number=number, settled=settled, reason=reason):
            part.warmup_passes, part.warmup_settled, part.warmup_reason = number, settled, reason
        case MeasuringBegan(rates=rates, canary_bytes_per_second=canary):
            run.client.rates = rates
            part.canary_before = canary
        case SloSettled(slo=slo):
            run.plan = msgspec.structs.replace(run.plan, slo=slo)
        case VisitCut(visit=visit):
            place = (visit.round, visit.cell)
            run.cut_visits = [*(one for one in run.cut_visits if (one.round, one.cell) != place), visit]
        case RoundEnded(machine=machine):
            run.rounds = machine.round
            others = [one for one in run.machine_by_round if one.round != machine.round]
            run.machine_by_round = [*others, machine]
            run.client.cpu_share = _cpu_share(run)
        case LookEnded(look=look):
            run.looks = [*(one for one in run.looks if one.round != look.round), look]
        case GeneratorFinished(canary_bytes_per_second=canary, aborted=aborted):
            part.canary_after = canary
            part.stopped_because = aborted


def take_in_rows(run: SweepRun, finished: Finished) -> None:
    """Set what follows from a run's rows: its order, and how warm-up ended."""
    run.order = finished.order
    _warmed(run, finished.parts)


def _warmed(run: SweepRun, measured: Set[int]) -> None:
    """Warm-up of the run: the passes of its last part, settled where that of every part is.

    Of the parts that `measured` something: where one was killed in its warm-up, no number comes from it. Of
    all where none has.
    """
    begun = [part for part in run.parts if part.warmup_passes]
    warmed = [part for part in begun if part.number in measured] or begun
    if not warmed:
        return
    unsettled = next((part for part in warmed if not part.warmup_settled), warmed[-1])
    run.client.warmup_passes = warmed[-1].warmup_passes
    run.client.warmup_settled = all(part.warmup_settled for part in warmed)
    run.client.warmup_reason = unsettled.warmup_reason


def _cpu_share(run: SweepRun) -> float | None:
    """The load generator's share of one core over all finished rounds."""
    known = [
        (one.client_cpu_seconds, one.seconds)
        for one in run.machine_by_round
        if one.client_cpu_seconds is not None and one.seconds
    ]
    return sum(cpu for cpu, _ in known) / sum(seconds for _, seconds in known) if known else None


def recover(folder: Path, run: SweepRun, finished: Finished) -> None:
    """Complete a `run.json` that a killed sweep left as it was at its start, from events and rows.

    A run that ended in order is left as it is, and so is one of before there were parts. Raises RowsError for
    a broken file of events.
    """
    if run.ended is not None or not run.parts:
        return
    parts = {part.number: part for part in run.parts}
    run.client, run.machine_by_round, run.looks = Client(), [], []
    run.cut_visits = []
    for one in read_events(folder):
        if one.part in parts:
            record(run, parts[one.part], one.event)
    for part in run.parts:
        if part.ended is None and part.stopped_because is None:
            part.stopped_because = KILLED
            part.gpus = summary(clocks_file(folder, part.number))
    take_in_rows(run, finished)
    run.stopped_because = run.parts[-1].stopped_because
