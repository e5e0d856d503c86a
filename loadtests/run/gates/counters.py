"""The gate of the counts: what the client sent is what the server counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from loadtests.run.gates.gate import Gate
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun
from loadtests.run.target import requests_by_mode
from service.protocol.modes import AUTO, FALLBACK

Scrapes = tuple[str | None, str | None]
"""The texts of /metrics before and after one part of a sweep; None where there is none."""


class Counters:
    """The server counted, per mode, exactly the requests with a row: no other client, no loss.

    Whatever came of them: the server counts those that it rejects under their mode too. Those to `auto`
    it counts under the mode that it picked, and those that ran as another form than their mode had
    declared under FALLBACK.

    An earlier part ended while requests were in flight: the server may have counted so many more.
    Where it was killed it has no scrape after it, its service may be gone too, and its rows stay unchecked.
    A scrape through a proxy is that of one replica, and says nothing of what the others counted.
    """

    def __init__(self) -> None:
        self._sent: dict[int, Counter[tuple[str, str | None]]] = defaultdict(Counter)

    def add(self, row: RequestRow) -> None:
        """Take in any row."""
        self._sent[row.part][row.ran_mode, row.effective_mode if row.ok else None] += 1

    def sent(self, part: int) -> int:
        """Rows of `part`."""
        return self._sent[part].total()

    def gate(self, run: SweepRun, scrapes: Sequence[Scrapes]) -> Gate:
        """Rows against counts; `scrapes` by part."""
        name = "client rows = server's count"
        if run.plan.replicas:
            return Gate(
                name=name, passed=None, detail="not judged: several replicas, each counts what it answered"
            )
        if None in scrapes[-1]:
            return Gate(name=name, passed=False, detail="/metrics could not be read before and after")
        wrong, unchecked, checked = [], [], 0
        for part, (before, after) in enumerate(scrapes, start=1):
            sent = _by_label(self._sent[part], run)
            if before is None or after is None:
                unchecked.append(
                    f"the {sent.total()} rows of part {part}, which was killed, could not be checked"
                )
                continue
            checked += sent.total()
            in_flight = 0 if part == len(scrapes) else _most_in_flight(run)
            wrong += _miscounts(sent, _count_difference(before, after), in_flight)
        detail = "; ".join([*wrong, *unchecked] if wrong else [f"{checked} both, per mode", *unchecked])
        return Gate(name=name, passed=not wrong, detail=detail)


def _by_label(ran: Counter[tuple[str, str | None]], run: SweepRun) -> Counter[str]:
    """How many requests there are for each value of the label `mode`."""
    sent = Counter[str]()
    for (mode, effective), count in ran.items():
        declared = run.mode(mode).get("effective")
        as_declared = None in (effective, declared) or effective == declared
        sent[mode if as_declared else FALLBACK] += count
    return sent


def _most_in_flight(run: SweepRun) -> int:
    """So many requests can have been sent and have no row: those in flight, and one that has just ended."""
    visits = [cell.requests if cell.open_loop else cell.concurrency for cell in run.plan.cells]
    return 1 + max(*visits, 0)


def _miscounts(sent: Counter[str], counted: Counter[str], in_flight: int) -> list[str]:
    """What the server counted wrongly; `in_flight` more than were sent are none, in all modes together.

    A request to `auto` that was refused, as by a full queue, does not say which mode it was counted under: so
    many more must stand in some mode.
    """
    more = {mode: counted[mode] - sent[mode] for mode in sorted({*sent, *counted} - {AUTO})}
    surplus = sum(more.values())
    if min(more.values(), default=0) >= 0 and sent[AUTO] <= surplus <= sent[AUTO] + in_flight:
        return []
    wrong = [f"{mode}: {sent[mode]} rows, {counted[mode]:.0f} counted" for mode in more if more[mode]]
    return [*wrong, f"{AUTO}: {sent[AUTO]} rows without the mode that it picked"] if sent[AUTO] else wrong


def _count_difference(before: str, after: str) -> Counter[str]:
    earlier = requests_by_mode(before)
    difference = Counter[str]()
    for mode, outcomes in requests_by_mode(after).items():
        difference[mode] += int(sum(outcomes.values()) - sum(earlier.get(mode, {}).values()))
    return difference
