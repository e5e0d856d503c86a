"""The gates that a sweep must pass for its numbers to be valid, and `validation.json`, which keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from loadtests.run.gates import modes, requests
from loadtests.run.gates import run as of_run
from loadtests.run.gates.gate import Gate as Gate
from loadtests.run.gates.requests import Scrapes
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun
from loadtests.run.scrapes import read_scrapes

VALIDATION_FILE = "validation.json"


def validate(
    run: SweepRun,
    rows: Sequence[RequestRow],
    before: str | None,
    after: str | None,
    earlier: Sequence[Scrapes] = (),
) -> list[Gate]:
    """All gates, then all warnings; `before` and `after` are scrapes of /metrics.

    They are those of the last part where the sweep was resumed; the parts before it have theirs in `earlier`.
    """
    gates = [
        of_run.complete(run, rows),
        requests.errors(rows),
        requests.counters(rows, [*earlier, (before, after)], run.plan),
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
        of_run.gaps(run, rows),
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


def validate_folder(folder: Path, run: SweepRun, rows: Sequence[RequestRow]) -> list[Gate]:
    """All gates of a results folder, from its rows and scrapes as they are now."""
    *earlier, last = (read_scrapes(folder, number) for number in range(1, max(1, len(run.parts)) + 1))
    return validate(run, rows, *last, earlier)
