"""Gates of the run: it is complete, its load generator kept up, the machine was itself, and it decided."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

from loadtests.plan.cells import MINIMUM_ROUNDS
from loadtests.run.finished import Finished, Owed, first_missing
from loadtests.run.gates.gate import Gate, some
from loadtests.run.machine import marked_rounds
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun

MOST_CLIENT_CPU = 0.80


def complete(run: SweepRun, finished: Finished, failed: int) -> Gate:
    """The plan was run to its end and every request that it has came to a row; else nothing is valid."""
    missing = first_missing(run.plan, finished, Owed(run.cut_visits))
    passed = run.complete and len(run.order) >= run.plan.rounds and missing is None
    if passed:
        return Gate(name="complete", passed=True, detail=f"all {len(run.order)} rounds")
    reason = run.stopped_because or f"{len(run.order)} of {run.plan.rounds} rounds"
    detail = f"stopped early: {reason}"
    if missing is not None:
        detail += f"; the first request without a row is in round {missing[0]}, cell '{missing[1].name}'"
    if failed:
        detail += "; requests failed, so that it cannot become valid: run the sweep again"
    elif run.parts:
        detail += "; go on with `launchbound sweep --resume` and this folder"
    return Gate(name="complete", passed=False, detail=detail)


class Gaps:
    """The sweep ran in one go, in one service: no round has some of its cells before a gap and some after."""

    def __init__(self) -> None:
        self._last_answer: dict[int, float] = {}
        self._measured = set[tuple[int, int]]()

    def add(self, row: RequestRow) -> None:
        """Take in any row."""
        end = row.start + row.latency_seconds
        if end > self._last_answer.get(row.part, 0.0):
            self._last_answer[row.part] = end
        if row.stage == "measure":
            self._measured.add((row.round, row.part))

    def gate(self, run: SweepRun) -> Gate:
        """Each gap, and where it lies."""
        name = "measured in one go"
        if len(run.parts) < 2:
            return Gate(name=name, passed=True, detail="no gap", warning=True)
        shown = []
        for before, after in pairwise(run.parts):
            began = before.ended or self._end_of(before.number)
            shown.append(f"{self._place(after.number)}, from {began} to {after.started}")
        count = len(shown)
        detail = f"{count} gap{'s' if count > 1 else ''}: {'; '.join(shown)}. Each part warmed up anew"
        return Gate(name=name, passed=False, detail=detail, warning=True)

    def _place(self, part: int) -> str:
        """Where the gap before `part` lies among the rounds; `part` itself may have measured nothing."""
        first = min((number for number, of_part in self._measured if of_part >= part), default=None)
        if first is None:
            return "after the last request"
        split = any(number == first and of_part < part for number, of_part in self._measured)
        return f"{'within' if split else 'before'} round {first}"

    def _end_of(self, part: int) -> str:
        """When the last request of a part that was killed had ended."""
        end = self._last_answer.get(part)
        return "an unknown time" if end is None else f"{datetime.fromtimestamp(end, UTC):%Y-%m-%dT%H:%M:%SZ}"


def client_cpu(run: SweepRun) -> Gate:
    """The load generator had time to spare, so that what it measured is the service."""
    share = run.client.cpu_share
    detail = "not known, because the sweep did not end" if share is None else f"{share:.0%} of one core"
    name = f"client CPU < {MOST_CLIENT_CPU:.0%}"
    return Gate(name=name, passed=share is not None and share < MOST_CLIENT_CPU, detail=detail)


def warmup(run: SweepRun) -> Gate:
    """Warm-up ended because nothing changed any more, not because its passes were used up."""
    detail = f"{run.client.warmup_passes} passes; {run.client.warmup_reason}"
    return Gate(name="warm-up", passed=run.client.warmup_settled, detail=detail, warning=True)


def rounds(run: SweepRun) -> Gate:
    """There are enough rounds for a verdict."""
    done = len(run.order) if run.complete else max(0, len(run.order) - 1)
    detail = f"{done} rounds" + (
        "" if done >= MINIMUM_ROUNDS else f", fewer than {MINIMUM_ROUNDS}: undecided"
    )
    return Gate(name="rounds", passed=done >= MINIMUM_ROUNDS, detail=detail, warning=True)


def verdicts(run: SweepRun) -> Gate:
    """In every main group the fastest mode is told apart from the others, or equal to them within 2 %."""
    name = "fastest modes told apart"
    if not run.looks:
        return Gate(name=name, passed=None, detail="the sweep stopped before its first look")
    last = run.looks[-1]
    detail = f"after {last.round} rounds"
    if last.undecided:
        remedy = "such a tie may be broken by more rounds (--preset standard, or rounds_most in a plan)"
        detail += f" still undecided: {some(last.undecided)}; {remedy}"
    return Gate(name=name, passed=not last.undecided, detail=detail, warning=True)


def rounds_marked(run: SweepRun) -> Gate:
    """No round in which the hypervisor took time, or memory was read much faster or slower than usual."""
    name = "steady machine"
    known = [
        one for one in run.machine_by_round if (one.steal_share, one.canary_bytes_per_second) != (None, None)
    ]
    if not known:
        return Gate(name=name, passed=None, detail="neither steal time nor the canary is known")
    marked = marked_rounds(known)
    detail = f"{len(marked)} of {len(known)} rounds marked"
    if marked:
        detail += f": {some([f'round {one.round} ({one.reason})' for one in marked])}"
    return Gate(name=name, passed=not marked, detail=detail, warning=True)
