"""Waits until every mode of a plan is ready; reports each poll, and raises on failure or timeout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any

import msgspec

from loadtests.plan.cells import Plan
from loadtests.run.target import ModeFailed, Target, TargetError, Unreachable
from service.protocol.modes import doubles

CONNECT_GRACE_SECONDS = 60.0
"""How long the service may be unreachable: one that has just been started imports for some seconds."""

POLL_SECONDS = 0.5


def wait_until_ready(
    target: Target, plan: Plan, report: Callable[[str], None], timeout_seconds: float = 900.0
) -> dict[str, Any]:
    """The document of GET /v1/modes once all modes of `plan` are ready; raises what `await_modes` raises."""
    document = await_modes(target, plan.modes, report, timeout_seconds)
    _check_fits(document, plan)
    return document


def await_modes(
    target: Target,
    modes: Sequence[str],
    report: Callable[[str], None],
    timeout_seconds: float = 900.0,
    settled: bool = False,
) -> dict[str, Any]:
    """The document of GET /v1/modes once all of `modes` are ready; `settled`: and the engine has
    finished warming up all its modes, of which then those may have failed that `modes` does not name.

    `report` is called with one line of state at every poll. Raises TargetError where the service does not
    answer or does not serve a mode, or after `timeout_seconds`, and ModeFailed where a mode failed (out of
    parity included).
    """
    began = monotonic()
    answered = False
    while True:
        waited = monotonic() - began
        try:
            document = target.modes()
        except Unreachable:
            if answered or waited > CONNECT_GRACE_SECONDS:
                raise
            report(f"{waited:.0f} s: waiting for {target.url} to answer")
        else:
            answered = True
            states = _states(document, modes)
            ready = all(state == "ready" for state in states.values())
            if ready and _is_up(document.get("engine"), settled):
                return document
            report(f"{waited:.0f} s: {_progress(states or _all_states(document))}")
        if waited > timeout_seconds:
            raise TargetError(
                f"not ready after {timeout_seconds:.0f} s: see {target.url}/health/ready for what is missing"
            )
        sleep(POLL_SECONDS)


def without_doubles(document: dict[str, Any], plan: Plan, report: Callable[[str], None]) -> Plan:
    """`plan` without the modes that run as another one of it on the device of the service.

    They would be measured twice, and the rounds would try to tell one thing apart. `document` is that of GET
    /v1/modes; a line per mode goes to `report`.
    """
    doubled = doubles(plan.modes, document["engine"]["device"])
    for mode, other in doubled.items():
        report(f"{mode} is left out: on this device it runs as {other}, which is measured")
    return msgspec.structs.replace(plan, cells=tuple(c for c in plan.cells if c.mode not in doubled))


def _is_up(engine: dict[str, Any] | None, settled: bool) -> bool:
    return engine is not None and (not settled or bool(engine.get("warm")))


def _states(document: dict[str, Any], modes: Sequence[str]) -> dict[str, str]:
    """State by mode. Raises TargetError for a mode that is not served, ModeFailed for one that has failed."""
    served = {mode["mode"]: mode for mode in document["modes"]}
    if missing := [mode for mode in modes if mode not in served]:
        raise TargetError(
            f"the service does not serve {', '.join(missing)} (it serves {', '.join(served)}): "
            "start it with these modes, or choose others"
        )
    for mode in modes:
        if served[mode]["state"] == "failed":
            why = served[mode].get("detail") or served[mode].get("reason") or "without a reason"
            raise ModeFailed(f"mode {mode} failed to become ready: {why}; sweep without it, or fix it")
    return {mode: served[mode]["state"] for mode in modes}


def _all_states(document: dict[str, Any]) -> dict[str, str]:
    return {mode["mode"]: mode["state"] for mode in document["modes"]}


def _progress(states: dict[str, str]) -> str:
    waiting = [f"{mode} {state}" for mode, state in states.items() if state != "ready"]
    ready = len(states) - len(waiting)
    return f"{ready} of {len(states)} modes ready; {', '.join(waiting) or 'engine starting'}"


def _check_fits(document: dict[str, Any], plan: Plan) -> None:
    buckets = document["engine"].get("batch_buckets") or []
    if buckets and plan.batch_sizes[-1] > max(buckets):
        raise TargetError(
            f"the plan has batch size {plan.batch_sizes[-1]}, the service takes up to {max(buckets)}: "
            f"start it with --batch-sizes {','.join(map(str, plan.batch_sizes))}"
        )
