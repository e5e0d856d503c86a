"""What shows that a mode replays its graphs, and what its status says where nothing does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from service.engine import mode_checks
from service.engine.configured_mode import ConfiguredMode
from service.engine.mode_checks import PHASES, verify_graph_replay
from service.protocol.modes import MODES
from service.protocol.status import ModeStatus
from service.step.kernel_matching import NOTHING_RECORDED
from service.step.trace import ProfiledStep

CUDA = torch.device("cuda")

REPLAYED = ProfiledStep(operators=0, copies=0, kernels=90, launches=1, graph_launches=1)
WITHOUT_KERNELS = ProfiledStep(operators=0, copies=0, launches=1, graph_launches=1, unknown="lost")
ISSUED = ProfiledStep(operators=0, copies=0, kernels=90, launches=90, graph_launches=0)
NOTHING = ProfiledStep(operators=0, copies=0, unknown=NOTHING_RECORDED)


def configured(name: str = "reduce-overhead") -> ConfiguredMode:
    mode = MODES[name]
    status = ModeStatus(mode=name, removes=mode.removes, state="warming", effective=mode.cuda.name)
    found = ConfiguredMode(mode, status)
    found.steps.update({(phase, 1): cast("Any", phase) for phase in PHASES})
    return found


def verified(
    monkeypatch: pytest.MonkeyPatch,
    seen: list[ProfiledStep],
    skips: int = 0,
    name: str = "reduce-overhead",
    device: torch.device = CUDA,
) -> tuple[ModeStatus, list[str]]:
    """The status after a verification that sees these steps in order, and the phases it looked at."""
    looked_at: list[str] = []
    steps: Iterator[ProfiledStep] = iter(seen)

    def profiled(step: Any, _: Any, phase: str) -> ProfiledStep:
        assert step == phase
        looked_at.append(phase)
        return next(steps)

    monkeypatch.setattr(mode_checks, "profile_step", profiled)
    monkeypatch.setattr(mode_checks, "prepare", lambda _: None)
    one = configured(name)
    verify_graph_replay(one, cast("Any", {1: None}), device, skips)
    return one.status, looked_at


def test_a_mode_that_replays_in_both_phases_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    status, looked_at = verified(monkeypatch, [REPLAYED, WITHOUT_KERNELS])
    assert (status.effective, status.reason) == ("reduce-overhead", None)
    assert looked_at == ["decode", "prefill"]


@pytest.mark.parametrize(("seen", "phase"), [([ISSUED], "decode"), ([REPLAYED, ISSUED], "prefill")])
def test_a_phase_without_its_graph_launch_takes_the_modes_name(
    monkeypatch: pytest.MonkeyPatch, seen: list[ProfiledStep], phase: str
) -> None:
    status, _ = verified(monkeypatch, seen)
    assert status.effective == "compiled"
    assert status.reason == f"CUDA graphs were skipped: 0 graph launches per {phase} step at batch 1"


def test_what_torch_counted_as_skipped_needs_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    status, looked_at = verified(monkeypatch, [], skips=2)
    assert status.effective == "compiled"
    assert status.reason == "CUDA graphs were skipped: torch gave them up for 2 compiled callables"
    assert looked_at == []


def test_an_empty_trace_is_taken_again_and_the_second_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    status, looked_at = verified(monkeypatch, [NOTHING, REPLAYED, REPLAYED])
    assert (status.effective, status.reason) == ("reduce-overhead", None)
    assert looked_at == ["decode", "decode", "prefill"]


def test_two_empty_traces_prove_nothing_and_are_not_called_skipped_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status, _ = verified(monkeypatch, [NOTHING, NOTHING, REPLAYED])
    assert status.effective == "reduce-overhead"
    assert status.reason is not None
    assert status.reason.startswith("graph replay is not proved per decode step at batch 1: ")
    assert NOTHING_RECORDED in status.reason


@pytest.mark.parametrize(("name", "device"), [("compiled", CUDA), ("reduce-overhead", torch.device("cpu"))])
def test_a_mode_that_promises_no_replay_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, name: str, device: torch.device
) -> None:
    _, looked_at = verified(monkeypatch, [], skips=3, name=name, device=device)
    assert looked_at == []
