"""Waits until every mode of a plan is ready, as long as the service comes nearer; reports each poll."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from time import monotonic, sleep
from typing import Any

import msgspec

from loadtests.plan.cells import Plan
from loadtests.run.target import ModeFailed, Target, TargetError, Unreachable
from service.modes import AUTO, doubles

CONNECT_GRACE_SECONDS = 60.0
"""How long the service may be unreachable: one that has just been started imports for some seconds."""

WITHOUT_PROGRESS_SECONDS = 1800.0
"""How long nothing may change: the service tells of a mode when all its callables are compiled, minutes of
a large model each."""

QUIET_SECONDS = 30.0
"""After so long without a change the line of state says how long."""

POLL_SECONDS = 0.5


def wait_until_ready(
    target: Target,
    plan: Plan,
    report: Callable[[str], None],
    without_progress_seconds: float = WITHOUT_PROGRESS_SECONDS,
) -> dict[str, Any]:
    """The document of GET /v1/modes once all modes of `plan` are ready and no other is warming up.

    Raises what `await_modes` raises, and TargetError for a plan with `auto` where the service has none, and
    for a proxy of replicas where the plan does not say that it may be one.
    """
    document = await_modes(target, plan.ladder_modes, report, without_progress_seconds, settled=True)
    _check_fits(document, plan)
    if not plan.replicas and (replica := target.replica()) is not None:
        raise TargetError(
            f"{target.url} is a proxy of replicas (this was {replica}), and requests run on any of them: "
            "sweep one by its own address (`launchbound serve --replicas` and its targets file list them), "
            "or write `replicas = true` into the plan"
        )
    if AUTO in plan.modes and "auto" not in document:
        raise TargetError(f"{target.url} is of a version without `{AUTO}`: sweep without it, or update it")
    return document


def await_modes(
    target: Target,
    modes: Sequence[str],
    report: Callable[[str], None],
    without_progress_seconds: float = WITHOUT_PROGRESS_SECONDS,
    settled: bool = False,
) -> dict[str, Any]:
    """The document of GET /v1/modes once all of `modes` are ready; `settled`: and the engine has
    finished warming up all its modes, of which then those may have failed that `modes` does not name.

    `report` is called with one line of state at every poll. Raises TargetError where the service does not
    answer or does not serve a mode, or after `without_progress_seconds` in which it did not come nearer, and
    ModeFailed where a mode failed (out of parity included).
    """
    began = monotonic()
    progress = _Progress(began)
    while True:
        waited = monotonic() - began
        try:
            document = target.modes()
        except Unreachable:
            if progress.stages or waited > CONNECT_GRACE_SECONDS:
                raise
            report(f"{waited:.0f} s: waiting for {target.url} to answer")
        else:
            states = _states(document, modes)
            ready = all(state == "ready" for state in states.values())
            if ready and _is_up(document.get("engine"), settled):
                return document
            quiet = progress.quiet_seconds(document)
            doing = _doing(document, modes)
            report(f"{waited:.0f} s{_quiet(quiet)}: {doing}")
            if quiet > without_progress_seconds:
                raise TargetError(
                    f"not ready after {waited:.0f} s, of which the last {quiet:.0f} s brought nothing new "
                    f"({doing}): see {target.url}/health/ready for what is missing, and the service's log"
                )
        sleep(POLL_SECONDS)


class _Progress:
    """When the service was last at a stage of warming up that it had not been at before.

    A change alone is none: an engine that dies and is replaced goes through the same stages for ever.
    """

    def __init__(self, began: float) -> None:
        self.stages = set[Hashable]()
        self._last = began

    def quiet_seconds(self, document: dict[str, Any]) -> float:
        """Seconds without a new stage; `document` is that of GET /v1/modes now."""
        stage = _stage(document)
        if stage not in self.stages:
            self.stages.add(stage)
            self._last = monotonic()
        return monotonic() - self._last


def _stage(document: dict[str, Any]) -> Hashable:
    """What of warming up is done: the engine, and per mode its state, compilations, parity and splits."""
    engine = document.get("engine") or {}
    modes = tuple(
        (
            mode["mode"],
            mode["state"],
            len(mode.get("compile_seconds") or ()),
            mode.get("parity") is not None,
            len(mode.get("splits") or ()),
        )
        for mode in document["modes"]
    )
    return (bool(engine), bool(engine.get("warm")), modes)


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


def _doing(document: dict[str, Any], modes: Sequence[str]) -> str:
    """What is ready and what is not, of `modes` or, where none are named, of all."""
    states = {m["mode"]: m["state"] for m in document["modes"] if not modes or m["mode"] in modes}
    waiting = [f"{mode} {state}" for mode, state in states.items() if state != "ready"]
    rest = "engine starting" if document.get("engine") is None else "sampling steps"
    return f"{len(states) - len(waiting)} of {len(states)} modes ready; {', '.join(waiting) or rest}"


def _quiet(seconds: float) -> str:
    return f", {seconds:.0f} s without a change" if seconds > QUIET_SECONDS else ""


def _check_fits(document: dict[str, Any], plan: Plan) -> None:
    buckets = document["engine"].get("batch_buckets") or []
    if buckets and plan.batch_sizes[-1] > max(buckets):
        raise TargetError(
            f"the plan has batch size {plan.batch_sizes[-1]}, the service takes up to {max(buckets)}: "
            f"start it with --batch-sizes {','.join(map(str, plan.batch_sizes))}"
        )
