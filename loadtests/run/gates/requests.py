"""Gates of the requests: none failed, none was lost, and none was kept waiting or disturbed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from loadtests.plan.cells import Plan
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


Scrapes = tuple[str | None, str | None]
"""The texts of /metrics before and after one part of a sweep; None where there is none."""


def counters(rows: Sequence[RequestRow], scrapes: Sequence[Scrapes], plan: Plan) -> Gate:
    """The server counted, per mode, exactly the requests with a row: no other client, no loss.

    `scrapes` by part. An earlier part ended while requests were in flight: the server may have counted so
    many more. Where it was killed it has no scrape after it, its service may be gone too, and its rows stay
    unchecked.
    """
    name = "client rows = server's count"
    if None in scrapes[-1]:
        return Gate(name=name, passed=False, detail="/metrics could not be read before and after")
    wrong, unchecked, checked = [], [], 0
    for part, (before, after) in enumerate(scrapes, start=1):
        sent = Counter(row.mode for row in rows if row.part == part)
        if before is None or after is None:
            unchecked.append(
                f"the {sent.total()} rows of part {part}, which was killed, could not be checked"
            )
            continue
        checked += sent.total()
        in_flight = 0 if part == len(scrapes) else _most_in_flight(plan)
        wrong += _miscounts(sent, _count_difference(before, after), in_flight)
    detail = "; ".join([*wrong, *unchecked] if wrong else [f"{checked} both, per mode", *unchecked])
    return Gate(name=name, passed=not wrong, detail=detail)


def _most_in_flight(plan: Plan) -> int:
    """So many requests can have been sent and have no row: those in flight, and one that has just ended."""
    return 1 + max(cell.concurrency if cell.load is None else cell.requests for cell in plan.cells)


def _miscounts(sent: Counter[str], counted: Counter[str], in_flight: int) -> list[str]:
    """What the server counted wrongly; `in_flight` more than were sent are none, in all modes together."""
    more = {mode: counted[mode] - sent[mode] for mode in sorted(sent.keys() | counted.keys())}
    if min(more.values(), default=0) >= 0 and sum(more.values()) <= in_flight:
        return []
    return [f"{mode}: {sent[mode]} rows, {counted[mode]:.0f} counted" for mode in more if more[mode]]


def _count_difference(before: str, after: str) -> Counter[str]:
    earlier = requests_by_mode(before)
    difference = Counter[str]()
    for mode, outcomes in requests_by_mode(after).items():
        difference[mode] += int(sum(outcomes.values()) - sum(earlier.get(mode, {}).values()))
    return difference


def rate(rows: Sequence[RequestRow]) -> Gate:
    """Open loop: requests left the client as scheduled. Span of intended over span of actual starts."""
    name = f"achieved/target rate ≥ {LEAST_RATE}"
    visits: dict[tuple[str, int, int], list[RequestRow]] = defaultdict(list)
    for row in rows:
        if row.load is not None and row.stage == "measure":
            visits[row.cell, row.round, row.part].append(row)
    spans: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (cell, *_), visit in visits.items():
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
