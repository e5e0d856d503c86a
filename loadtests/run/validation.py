"""The gates that a sweep must pass for its numbers to be valid, and `validation.json`, which keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from loadtests.run.gates import modes, requests
from loadtests.run.gates import run as of_run
from loadtests.run.gates.gate import Gate as Gate
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun

VALIDATION_FILE = "validation.json"


def validate(run: SweepRun, rows: Sequence[RequestRow], before: str | None, after: str | None) -> list[Gate]:
    """All gates, then all warnings; `before` and `after` are scrapes of /metrics."""
    gates = [
        of_run.complete(run),
        requests.errors(rows),
        requests.counters(rows, before, after),
        requests.rate(rows),
        of_run.client_cpu(run),
        modes.parity(run),
        modes.texts(rows, run),
        modes.control(rows, run),
        of_run.verdicts(run),
        of_run.rounds(run),
        of_run.warmup(run),
        of_run.rounds_marked(run),
        of_run.floors(run),
        requests.disturbed(rows),
        requests.queue(rows),
        requests.clipped(rows),
        modes.fallbacks(rows, run),
    ]
    return sorted(gates, key=lambda gate: gate.warning)


def write_validation(folder: Path, gates: Iterable[Gate]) -> None:
    """Write `validation.json`."""
    gates = list(gates)
    document = {"passed": not any(gate.failed for gate in gates), "gates": gates}
    (folder / VALIDATION_FILE).write_bytes(
        msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    )


def read_validation(folder: Path) -> list[Gate]:
    """The gates of a results folder; a failed one where the sweep ended before it came to them."""
    path = folder / VALIDATION_FILE
    if not path.exists():
        why = "the sweep ended before its gates were checked: run it again"
        return [Gate(name="complete", passed=False, detail=why)]
    return msgspec.convert(msgspec.json.decode(path.read_bytes())["gates"], list[Gate])
