"""Gates of the requests: none failed, none was lost, and none was kept waiting or disturbed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from loadtests.run.gates.gate import Gate, some
from loadtests.run.rows import RequestRow
from loadtests.run.target import requests_by_mode
from service.statistics.disturbance import is_disturbed

LEAST_RATE = 0.98
QUEUED_SECONDS = 0.0002
"""A shorter wait between two processes is no queue."""
MOST_QUEUED = 0.01


def errors(rows: Sequence[RequestRow]) -> Gate:
    """Every request succeeded, those of warm-up too."""
    failed = [row for row in rows if not row.ok]
    detail = f"{len(failed)} of {len(rows)} requests failed"
    if failed:
        message, count = Counter(row.error for row in failed).most_common(1)[0]
        detail += f"; {count} × {message}"
    return Gate(name="no errors", passed=bool(rows) and not failed, detail=detail)


def counters(rows: Sequence[RequestRow], before: str | None, after: str | None) -> Gate:
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


def rate(rows: Sequence[RequestRow]) -> Gate:
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


def disturbed(rows: Sequence[RequestRow]) -> Gate:
    """No cell in which the engine lost its core more than once per 20 steps."""
    cells: dict[str, list[RequestRow]] = defaultdict(list)
    for row in rows:
        if row.counts:
            cells[row.cell].append(row)
    marked = [
        cell
        for cell, measured in cells.items()
        if is_disturbed(sum(r.involuntary_switches or 0 for r in measured), sum(r.steps for r in measured))
    ]
    detail = f"{len(marked)} of {len(cells)} cells"
    if marked:
        detail += f" ({some(sorted(marked))}): the engine was preempted; close other programs and run again"
    return Gate(name="disturbed cells", passed=not marked, detail=detail, warning=True)


def queue(rows: Sequence[RequestRow]) -> Gate:
    """One request at a time finds an idle engine: whatever it waits for is work that is not a request's."""
    name = "queue at concurrency 1 is 0"
    waits = [
        row.queue_seconds
        for row in rows
        if row.counts and row.load is None and row.concurrency == 1 and row.queue_seconds is not None
    ]
    if not waits:
        return Gate(name=name, passed=None, detail="no such request, or none with its queue time")
    queued = [seconds for seconds in waits if seconds > QUEUED_SECONDS]
    detail = f"{len(queued)} of {len(waits)} requests waited over {QUEUED_SECONDS * 1e3:.1f} ms"
    if queued:
        detail += f", the longest {max(queued) * 1e3:.1f} ms: the engine did other work between requests"
    return Gate(name=name, passed=len(queued) <= MOST_QUEUED * len(waits), detail=detail, warning=True)


def clipped(rows: Sequence[RequestRow]) -> Gate:
    """No estimate of dispatch was longer than the phase that it belongs to."""
    counted = [row for row in rows if row.counts]
    cut = [row for row in counted if any(phase and phase.clipped for phase in (row.prefill, row.decode))]
    detail = f"{len(cut)} of {len(counted)} requests"
    if cut:
        cells = sorted({row.cell for row in cut})
        detail += f" ({some(cells)}): their floor was longer than the phase, and was cut to it"
    return Gate(name="clipped estimates", passed=not cut, detail=detail, warning=True)
