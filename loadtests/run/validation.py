"""The gates that a sweep must pass for its numbers to be valid."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from loadtests.plan.cells import MINIMUM_ROUNDS
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun
from loadtests.run.target import requests_by_mode
from service.statistics.disturbance import is_disturbed

VALIDATION_FILE = "validation.json"
LEAST_RATE = 0.98
MOST_CLIENT_CPU = 0.80


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `passed` None: does not apply to this sweep. A `warning` never fails the exit code."""

    name: str
    passed: bool | None
    detail: str
    warning: bool = False

    @property
    def failed(self) -> bool:
        """Whether the sweep is not valid because of this."""
        return self.passed is False and not self.warning


def validate(run: SweepRun, rows: Sequence[RequestRow], before: str | None, after: str | None) -> list[Gate]:
    """All gates, then all warnings; `before` and `after` are scrapes of /metrics."""
    return [
        _complete(run),
        _errors(rows),
        _counters(rows, before, after),
        _rate(rows),
        _client_cpu(run),
        _parity(run),
        _warmup(run),
        _disturbed(rows),
        _rounds(run),
        _fallbacks(rows, run),
    ]


def write_validation(folder: Path, gates: Iterable[Gate]) -> None:
    """Write `validation.json`."""
    gates = list(gates)
    document = {"passed": not any(gate.failed for gate in gates), "gates": gates}
    (folder / VALIDATION_FILE).write_bytes(
        msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    )


def read_validation(folder: Path) -> list[Gate]:
    """The gates of a results folder; none where the sweep did not get that far."""
    path = folder / VALIDATION_FILE
    if not path.exists():
        return []
    return msgspec.convert(msgspec.json.decode(path.read_bytes())["gates"], list[Gate])


def _complete(run: SweepRun) -> Gate:
    detail = f"all {run.plan.rounds} rounds" if run.complete else f"stopped early: {run.stopped_because}"
    return Gate(name="complete", passed=run.complete, detail=detail)


def _errors(rows: Sequence[RequestRow]) -> Gate:
    failed = [row for row in rows if not row.ok]
    detail = f"{len(failed)} of {len(rows)} requests failed"
    if failed:
        message, count = Counter(row.error for row in failed).most_common(1)[0]
        detail += f"; {count} × {message}"
    return Gate(name="no errors", passed=bool(rows) and not failed, detail=detail)


def _counters(rows: Sequence[RequestRow], before: str | None, after: str | None) -> Gate:
    """The server counted, per mode, exactly the requests with a row: no other client, no loss."""
    name = "client rows = server's count"
    if before is None or after is None:
        return Gate(name=name, passed=False, detail="/metrics could not be read before and after")
    sent = Counter(row.mode for row in rows)
    counted = _count_difference(before, after)
    wrong = [
        f"{mode}: {sent[mode]} rows, {counted[mode]:.0f} counted"
        for mode in sorted(sent.keys() | counted.keys())
        if sent[mode] != counted[mode]
    ]
    detail = "; ".join(wrong) or f"{len(rows)} both, per mode"
    return Gate(name=name, passed=not wrong, detail=detail)


def _count_difference(before: str, after: str) -> Counter[str]:
    earlier = requests_by_mode(before)
    difference = Counter[str]()
    for mode, outcomes in requests_by_mode(after).items():
        difference[mode] += int(sum(outcomes.values()) - sum(earlier.get(mode, {}).values()))
    return difference


def _rate(rows: Sequence[RequestRow]) -> Gate:
    """Open loop: requests left the client as scheduled. Span of intended over span of actual starts."""
    name = f"achieved/target rate ≥ {LEAST_RATE}"
    visits: dict[tuple[str, int], list[RequestRow]] = defaultdict(list)
    for row in rows:
        if row.load is not None and row.stage == "measure":
            visits[row.cell, row.round].append(row)
    spans: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (cell, _), visit in visits.items():
        first = min(row.intended_start for row in visit)
        spans[cell][0] += max(row.intended_start for row in visit) - first
        spans[cell][1] += max(row.start for row in visit) - first
    if not spans:
        return Gate(name=name, passed=None, detail="no open-loop cell in this plan")
    ratios = {cell: target / actual if actual else 1.0 for cell, (target, actual) in spans.items()}
    worst = min(ratios, key=lambda cell: ratios[cell])
    detail = f"lowest {ratios[worst]:.3f} ({worst})"
    return Gate(name=name, passed=ratios[worst] >= LEAST_RATE, detail=detail)


def _client_cpu(run: SweepRun) -> Gate:
    share = run.client.cpu_share
    detail = "not known, because the sweep did not end" if share is None else f"{share:.0%} of one core"
    name = f"client CPU < {MOST_CLIENT_CPU:.0%}"
    return Gate(name=name, passed=share is not None and share < MOST_CLIENT_CPU, detail=detail)


def _parity(run: SweepRun) -> Gate:
    verdicts = {mode: run.mode(mode).get("parity") for mode in run.plan.modes}
    unknown = [mode for mode, verdict in verdicts.items() if verdict is None]
    out = [mode for mode, verdict in verdicts.items() if verdict is not None and not verdict["passed"]]
    detail = "every mode computes what eager computes"
    if out or unknown:
        parts = ([f"out of parity: {', '.join(out)}"] if out else []) + (
            [f"not checked: {', '.join(unknown)}"] if unknown else []
        )
        detail = "; ".join(parts)
    return Gate(name="parity", passed=not out and not unknown, detail=detail)


def _warmup(run: SweepRun) -> Gate:
    detail = f"{run.client.warmup_passes} passes; {run.client.warmup_reason}"
    return Gate(name="warm-up", passed=run.client.warmup_settled, detail=detail, warning=True)


def _disturbed(rows: Sequence[RequestRow]) -> Gate:
    cells: dict[str, list[RequestRow]] = defaultdict(list)
    for row in rows:
        if row.ok and row.stage == "measure" and not row.profiled:
            cells[row.cell].append(row)
    marked = [
        cell
        for cell, measured in cells.items()
        if is_disturbed(sum(r.involuntary_switches or 0 for r in measured), sum(r.steps for r in measured))
    ]
    detail = f"{len(marked)} of {len(cells)} cells"
    if marked:
        shown = ", ".join(sorted(marked)[:3]) + (", …" if len(marked) > 3 else "")
        detail += f" ({shown}): the engine was preempted; close other programs and run again"
    return Gate(name="disturbed cells", passed=not marked, detail=detail, warning=True)


def _rounds(run: SweepRun) -> Gate:
    done = len(run.order) if run.complete else max(0, len(run.order) - 1)
    detail = f"{done} rounds" + (
        "" if done >= MINIMUM_ROUNDS else f", fewer than {MINIMUM_ROUNDS}: undecided"
    )
    return Gate(name="rounds", passed=done >= MINIMUM_ROUNDS, detail=detail, warning=True)


def _fallbacks(rows: Sequence[RequestRow], run: SweepRun) -> Gate:
    """Requests that ran as something else than their mode had declared at warm-up."""
    declared = {mode: run.mode(mode).get("effective") for mode in run.plan.modes}
    other = Counter(
        f"{row.mode} ran as {row.effective_mode}"
        for row in rows
        if row.ok and row.effective_mode != declared.get(row.mode)
    )
    detail = (
        "; ".join(f"{count} × {what}" for what, count in other.items()) or "every request ran as declared"
    )
    return Gate(name="fallbacks", passed=not other, detail=detail, warning=True)
