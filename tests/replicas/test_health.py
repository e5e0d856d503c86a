"""When a replica is replaced: not while its front has a new engine start, but where that does not help."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.front.routes.state import AppState
from service.replicas.health import Health, Unhealthy

CONFIGURED = ["eager", "compiled"]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def front(required: list[str] | None = None, **states: str) -> Any:
    """A front's state with these modes, of which some are `required`; without any its engine is down."""
    modes = {
        name: SimpleNamespace(mode=name, state=state, detail="it broke") for name, state in states.items()
    }
    ready = [name for name, state in states.items() if state == "ready"]
    client = SimpleNamespace(
        draining=False,
        open=frozenset(ready),
        configured=CONFIGURED,
        engine=object() if states else None,
        modes=modes,
        down_reason="the engine ended by signal 9",
        retry_after_seconds=5,
        ready_modes=lambda: ready,
    )
    return SimpleNamespace(
        client=client,
        supervisor=SimpleNamespace(unhealthy_reason=None),
        settings=SimpleNamespace(require_modes=required),
    )


def health(state: Any, start_seconds: float = 0.0) -> tuple[Health, Clock]:
    clock = Clock()
    return Health(cast(AppState, state), start_seconds, clock), clock


def test_a_front_that_is_ready_is_healthy() -> None:
    found, _ = health(front(eager="ready", compiled="ready"))
    assert found.ready
    found.check()


def test_an_engine_that_starts_anew_has_a_minute_or_twice_its_first_start() -> None:
    for start_seconds, patience in ((10.0, 60.0), (200.0, 400.0)):
        found, clock = health(front(), start_seconds)
        found.check()
        clock.now += patience - 1
        found.check()
        clock.now += 1
        with pytest.raises(Unhealthy, match=f"not ready for {patience:.0f} s: the engine ended by signal 9"):
            found.check()


def test_a_front_that_became_ready_meanwhile_begins_anew() -> None:
    state = front()
    found, clock = health(state)
    found.check()
    clock.now += 59
    healed = front(eager="ready", compiled="ready")
    down, state.client = state.client, healed.client
    found.check()
    state.client = down
    clock.now += 59
    found.check()


def test_engines_that_keep_ending_are_a_fault_at_once() -> None:
    state = front()
    state.supervisor.unhealthy_reason = "the engine ended 5 times within 15 minutes"
    found, _ = health(state)
    assert found.lost == "the engine ended 5 times within 15 minutes"
    with pytest.raises(Unhealthy, match="ended 5 times"):
        found.check()


def test_a_required_mode_that_failed_will_not_become_ready_by_waiting() -> None:
    found, _ = health(front(["compiled"], eager="ready", compiled="failed"))
    assert not found.ready
    assert found.lost == "mode compiled failed: it broke"


def test_another_mode_that_failed_holds_no_request_and_replaces_no_replica() -> None:
    for required in (None, ["eager"]):
        found, clock = health(front(required, eager="ready", compiled="failed"))
        assert found.ready
        assert found.lost is None
        clock.now += 1000
        found.check()


def test_a_replica_all_of_whose_modes_failed_is_lost() -> None:
    found, _ = health(front(eager="failed", compiled="failed"))
    assert not found.ready
    assert found.lost == "mode eager failed: it broke; mode compiled failed: it broke"


def test_a_front_that_shuts_down_is_not_to_be_replaced() -> None:
    state = front()
    state.client.draining = True
    found, clock = health(state)
    clock.now += 1000
    found.check()
