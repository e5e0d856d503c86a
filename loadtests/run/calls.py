"""How many calls a request of a module makes: chosen once, for all modes alike, when its service is ready."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import Any

from loadtests.plan.cells import BASELINE, Plan
from loadtests.plan.presets import CALLS_SECONDS
from loadtests.run.target import COUNTED_WITHIN_SECONDS, Target, TargetError, total_requests, workload_of
from service.workloads import FORWARD

MOST_CALLS = 1000
"""Of calls of 50 µs. In a shorter request the first calls, whose caches are cold, would weigh more."""

FEW_CALLS = 8
"""So many in a row show the time of a call that the caches are warm for."""

TIMEOUT_SECONDS = 600.0


def of_module(target: Target, engine: Mapping[str, Any], plan: Plan, report: Callable[[str], None]) -> Plan:
    """`plan` of calls, so many that a request takes about CALLS_SECONDS in eager, where a module is served.

    Another plan is returned as it is. The server has counted the requests that this takes when it returns.
    Raises TargetError for batch sizes that are not served, and where the service measures no call.
    """
    if workload_of(engine) is not FORWARD:
        return plan
    served, sizes = engine["batch_buckets"], plan.batch_sizes
    if missing := [size for size in sizes if size not in served]:
        raise TargetError(
            f"a module is called on the batch sizes that it is served with, {', '.join(map(str, served))}: "
            f"leave {', '.join(map(str, missing))} out, or start the service with --batch-sizes "
            f"{','.join(map(str, sizes))}"
        )
    before = total_requests(target.metrics())
    chosen = {size: _calls(target, size) for size in sizes}
    deadline = monotonic() + COUNTED_WITHIN_SECONDS
    while total_requests(target.metrics()) < before + 2 * len(sizes) and monotonic() < deadline:
        sleep(0.1)
    found = plan.of_calls(chosen)
    if left_out := len(plan.cells) - len(found.cells):
        report(f"a module has no prompts and no arrivals: {left_out} cells of the plan are left out")
    each = ", ".join(f"{count} at batch {size}" for size, count in chosen.items())
    report(f"calls per request, in every mode: {each}")
    return found


def _calls(target: Target, batch_size: int) -> int:
    """Calls that take about CALLS_SECONDS together, 1 to MOST_CALLS, by two requests of eager."""
    found = 1
    for most in (FEW_CALLS, MOST_CALLS):
        found = max(1, min(most, round(CALLS_SECONDS / _call_seconds(target, batch_size, found))))
    return found


def _call_seconds(target: Target, batch_size: int, calls: int) -> float:
    """Of one of `calls` in a row. Raises TargetError where the service does not answer it."""
    path = FORWARD.route.format(mode=BASELINE)
    body = {"batch_size": batch_size, "seed": 0, "calls": calls}
    status, text = target.post(path, body, TIMEOUT_SECONDS)
    if status != 200:
        raise TargetError(f"POST {path} at batch {batch_size} answered {status}: {text[:300]}")
    wall: float | None = json.loads(text)["timings"]["forward"]["wall_seconds"]
    if not wall:
        raise TargetError("the service measures no call: start it without LAUNCHBOUND_INSTRUMENTATION=off")
    return wall / calls
