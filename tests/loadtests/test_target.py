"""The service under test: how long it may take to be ready, and modes that it runs as another one."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.run import target
from loadtests.run.target import (
    WITHOUT_PROGRESS_SECONDS,
    Target,
    TargetError,
    await_modes,
    wait_until_ready,
    without_doubles,
)
from tests.support.fake_service import Script, engine_status, fake_service
from tests.support.made_plans import make_plan

POLL_SECONDS = 600.0


class Warming(Target):
    """A service that answers `documents` one after the other, and the last of them for ever."""

    def __init__(self, documents: list[dict[str, Any]]) -> None:
        super().__init__("http://127.0.0.1:1")
        self._documents = documents

    def modes(self) -> dict[str, Any]:
        return self._documents.pop(0) if len(self._documents) > 1 else self._documents[0]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times so far, the last of them now: it passes by sleeping only."""
    times = [0.0]
    monkeypatch.setattr(target, "sleep", lambda _: times.append(times[-1] + POLL_SECONDS))
    monkeypatch.setattr(target, "monotonic", lambda: times[-1])
    return times


def document(*states: str, compiled: int = 0, warm: bool = False) -> dict[str, Any]:
    """Modes a, b, … in these states; of the first so many callables are compiled."""
    modes = [
        {"mode": name, "state": state, "compile_seconds": [1.0] * compiled if name == "a" else []}
        for name, state in zip("abcdefgh", states, strict=False)
    ]
    return {"modes": modes, "engine": {"warm": warm}}


@pytest.mark.parametrize(
    "onward",
    [
        document("warming", "ready"),
        document("warming", "warming", compiled=1),
        document("ready", "warming", warm=True),
    ],
    ids=["state", "compilations", "engine"],
)
def test_every_kind_of_progress_counts(onward: dict[str, Any]) -> None:
    before = document("warming", "warming")
    patience = int(WITHOUT_PROGRESS_SECONDS / POLL_SECONDS)
    ready = document("ready", "ready")
    await_modes(Warming([*[before] * patience, *[onward] * patience, ready]), "ab", lambda line: None)


def test_one_that_stands_still_is_given_up_with_what_it_was_doing(clock: list[float]) -> None:
    reported: list[str] = []
    with pytest.raises(TargetError, match=r"not ready after .* brought nothing new") as refused:
        await_modes(Warming([document("ready", "warming")]), "ab", reported.append)
    assert "1 of 2 modes ready; b warming" in str(refused.value)
    assert "1 of 2 modes ready; b warming" in reported[-1]
    assert WITHOUT_PROGRESS_SECONDS < clock[-1] <= WITHOUT_PROGRESS_SECONDS + POLL_SECONDS


def test_an_engine_that_dies_and_starts_again_makes_no_progress(clock: list[float]) -> None:
    again = [document("cold", "cold"), document("warming", "cold")] * 40
    with pytest.raises(TargetError, match="nothing new"):
        await_modes(Warming(again), "ab", lambda line: None)
    assert clock[-1] < 2 * WITHOUT_PROGRESS_SECONDS


@pytest.mark.parametrize("replicas", [False, True])
def test_a_proxy_of_replicas_is_swept_only_where_the_plan_says_so(replicas: bool) -> None:
    cells = (Cell(mode="eager", batch_size=1, new_tokens=4, requests=1),)
    plan = Plan(preset="own", seed=1, rounds=1, cells=cells, replicas=replicas)
    with fake_service(Script(replica="r1")) as url:
        if replicas:
            assert wait_until_ready(Target(url), plan, print)["engine"] is not None
        else:
            with pytest.raises(TargetError, match="`replicas = true` into the plan"):
                wait_until_ready(Target(url), plan, print)


MODES = ["eager", "inference_mode", "cuda-graph"]


def modes_on(device: str) -> dict[str, object]:
    return {"engine": engine_status() | {"device": device}, "modes": []}


LEFT_OUT = "cuda-graph is left out: on this device it runs as inference_mode, which is measured"


@pytest.mark.parametrize(
    ("device", "modes", "left", "said"),
    [
        ("cpu", MODES, MODES[:2], [LEFT_OUT]),
        ("cuda", MODES, MODES, []),
        ("cpu", ["eager", "cuda-graph"], ["eager", "cuda-graph"], []),
    ],
)
def test_only_what_would_be_measured_twice_leaves_the_plan_with_a_line(
    device: str, modes: list[str], left: list[str], said: list[str]
) -> None:
    lines: list[str] = []
    plan = make_plan("quick", 1, modes=modes)
    found = without_doubles(modes_on(device), plan, lines.append)
    assert list(found.cells) == [cell for cell in plan.cells if cell.mode in left]
    assert (found.modes, lines) == (left, said)
