"""A service may take its time to be ready as long as it comes nearer, and not a moment longer."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.run import target
from loadtests.run.target import WITHOUT_PROGRESS_SECONDS, Target, TargetError, await_modes, wait_until_ready
from tests.support.fake_service import Script, fake_service

STEP_SECONDS = 600.0


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += STEP_SECONDS


class Warming(Target):
    """A service that answers `documents` one after the other, and the last of them for ever."""

    def __init__(self, documents: list[dict[str, Any]]) -> None:
        super().__init__("http://127.0.0.1:1")
        self._documents = documents

    def modes(self) -> dict[str, Any]:
        return self._documents.pop(0) if len(self._documents) > 1 else self._documents[0]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(target, "sleep", own.sleep)
    monkeypatch.setattr(target, "monotonic", lambda: own.now)
    return own


def document(*states: str, compiled: int = 0, warm: bool = False) -> dict[str, Any]:
    """Modes a, b, … in these states; of the first so many callables are compiled."""
    modes = [
        {"mode": name, "state": state, "compile_seconds": [1.0] * compiled if name == "a" else []}
        for name, state in zip("abcdefgh", states, strict=False)
    ]
    return {"modes": modes, "engine": {"warm": warm}}


def test_a_service_that_goes_on_is_awaited_far_beyond_the_bound(clock: Clock) -> None:
    count = 8
    stages = [document(*["ready"] * n, *["warming"] * (count - n)) for n in range(count + 1)]
    twice = [one for stage in stages for one in (stage, stage)]
    await_modes(Warming(twice), "abcdefgh", lambda line: None)
    assert clock.now > 4 * WITHOUT_PROGRESS_SECONDS


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
    patience = int(WITHOUT_PROGRESS_SECONDS / STEP_SECONDS)
    ready = document("ready", "ready")
    await_modes(Warming([*[before] * patience, *[onward] * patience, ready]), "ab", lambda line: None)


def test_one_that_stands_still_is_given_up_with_what_it_was_doing(clock: Clock) -> None:
    reported: list[str] = []
    with pytest.raises(TargetError, match=r"not ready after .* brought nothing new") as refused:
        await_modes(Warming([document("ready", "warming")]), "ab", reported.append)
    assert "1 of 2 modes ready; b warming" in str(refused.value)
    assert "s without a change: 1 of 2 modes ready; b warming" in reported[-1]
    assert WITHOUT_PROGRESS_SECONDS < clock.now <= WITHOUT_PROGRESS_SECONDS + STEP_SECONDS


def test_an_engine_that_dies_and_starts_again_makes_no_progress(clock: Clock) -> None:
    again = [document("cold", "cold"), document("warming", "cold")] * 40
    with pytest.raises(TargetError, match="nothing new"):
        await_modes(Warming(again), "ab", lambda line: None)
    assert clock.now < 2 * WITHOUT_PROGRESS_SECONDS


def test_a_sweep_waits_for_the_warm_up_of_modes_that_it_does_not_measure() -> None:
    """Else they would compile beside it."""
    stages = [
        document("ready", "warming"),
        document("ready", "failed"),
        document("ready", "failed", warm=True),
    ]
    service = Warming(stages)
    assert await_modes(service, "a", lambda line: None, settled=True)["engine"]["warm"]


@pytest.mark.parametrize("replicas", [False, True])
def test_a_proxy_of_replicas_is_swept_only_where_the_plan_says_so(replicas: bool) -> None:
    plan = Plan(
        preset="own",
        seed=1,
        rounds=1,
        cells=(Cell(mode="eager", batch_size=1, new_tokens=4, requests=1),),
        replicas=replicas,
    )
    with fake_service(Script(replica="r1")) as url:
        if replicas:
            assert wait_until_ready(Target(url), plan, print)["engine"] is not None
        else:
            with pytest.raises(TargetError, match="`replicas = true` into the plan"):
                wait_until_ready(Target(url), plan, print)
