"""Gates of the run: it is complete, its load generator kept up, the machine was itself, and it decided."""

from __future__ import annotations

from loadtests.plan.cells import MINIMUM_ROUNDS
from loadtests.run.floors import moved_floors
from loadtests.run.gates.gate import Gate, some
from loadtests.run.machine import marked_rounds
from loadtests.run.run_file import SweepRun

MOST_CLIENT_CPU = 0.80


def complete(run: SweepRun) -> Gate:
    """The plan was run to its end; whatever stopped early is not valid."""
    passed = run.complete and len(run.order) >= run.plan.rounds
    stopped = f"stopped early: {run.stopped_because or f'{len(run.order)} of {run.plan.rounds} rounds'}"
    return Gate(name="complete", passed=passed, detail=f"all {len(run.order)} rounds" if passed else stopped)


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
        detail += f" still undecided: {some(last.undecided)}; such a tie may be broken by more rounds"
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


def floors(run: SweepRun) -> Gate:
    """No floor moved during the sweep further than its intervals before and after allow."""
    name = "floors before = after"
    if not run.floors_before or not run.floors_after:
        return Gate(name=name, passed=None, detail="the service gave no floors before and after")
    moved = moved_floors(run.floors_before, run.floors_after)
    witnesses = sum(f.get("source") != "smallest_batch" for f in run.floors_after)
    witnesses += sum(bool(f.get("stacks")) for f in run.floors_after)
    detail = f"{len(moved)} of {witnesses} moved beyond their intervals"
    if moved:
        detail += f", most {some([one.name for one in moved])}"
    return Gate(name=name, passed=not moved, detail=detail, warning=True)
