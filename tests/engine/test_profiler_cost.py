"""What the profiler's first session costs: measured before and after it in every mode, or unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.engine.profiler import REMEDY, ROUNDS, UNKNOWN, ProfilerAttachment
from service.engine.warmup import ConfiguredMode
from service.modes import MODES
from service.records import ModeStatus

NAMES = ("eager", "reduce-overhead")


class FakeBuffers:
    """Of one bucket."""

    def __init__(self, bucket: int) -> None:
        self.bucket = bucket


def modes() -> dict[str, ConfiguredMode]:
    """Two modes, each step known by its name; the second has failed in a third."""
    found = {}
    for name in (*NAMES, "compiled"):
        status = ModeStatus(mode=name, removes="", state="warming", effective=name)
        steps: Any = {} if name == "compiled" else {("decode", 1): name, ("decode", 4): f"{name} at 4"}
        found[name] = ConfiguredMode(MODES[name], status, steps)
    return found


def attached(
    slowdown: float, used: Callable[[], bool] = lambda: False
) -> tuple[ProfilerAttachment, list[str]]:
    """An attachment after which a step takes `slowdown` times as long, and the steps that were measured."""
    happened: list[str] = []
    attachment: ProfilerAttachment

    def measure(step: Any, buffers: Any) -> float:
        happened.append(step)
        scatter = 1 + 0.001 * (len(happened) % 3)
        base = 1e-3 if step == "eager" else 6e-5
        return base * scatter * (slowdown if "session" in happened else 1.0)

    buffers: Any = {1: FakeBuffers(1), 4: FakeBuffers(4)}
    attachment = ProfilerAttachment(buffers, measure)
    for _ in attachment.attach(modes(), lambda: happened.append("session"), used):
        continue
    return attachment, happened


def test_every_captured_mode_is_measured_before_the_session_and_as_often_after_it() -> None:
    attachment, happened = attached(1.0)
    turn = happened.index("session")
    for part in (happened[:turn], happened[turn + 1 :]):
        assert {name: part.count(name) for name in part} == dict.fromkeys(NAMES, ROUNDS)
    assert attachment.costs.keys() == set(NAMES)


def test_a_session_that_changes_nothing_has_a_ratio_of_1_and_no_note() -> None:
    attachment, _ = attached(1.0)
    for cost in attachment.costs.values():
        assert cost.low < 1.0 < cost.high
        assert cost.ratio == pytest.approx(1.0, abs=0.002)
        assert cost.rounds == ROUNDS
    assert attachment.note is None


def test_a_slowdown_beyond_doubt_is_in_the_note_with_the_remedy() -> None:
    attachment, _ = attached(1.2)
    cost = attachment.costs["reduce-overhead"]
    assert cost.ratio == pytest.approx(1.2, rel=0.01)
    assert cost.after_seconds == pytest.approx(1.2 * cost.before_seconds, rel=0.01)
    assert cost.matters
    assert attachment.note is not None
    assert "eager 1.20 (95 % interval 1." in attachment.note
    assert attachment.note.endswith(REMEDY)


def test_a_slowdown_below_the_bound_is_measured_and_not_called_one_that_matters() -> None:
    attachment, _ = attached(1.04)
    assert attachment.costs["eager"].low > 1.0
    assert attachment.note is None


def test_where_a_request_was_profiled_first_the_cost_is_said_to_be_unknown() -> None:
    attachment, happened = attached(1.2, used=lambda: True)
    assert attachment.costs == {}
    assert attachment.note == UNKNOWN
    assert happened[-1] == "session"
