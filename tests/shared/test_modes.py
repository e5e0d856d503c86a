"""The ladder as data: what replays a graph, who issues it, and what would be measured twice."""

from __future__ import annotations

import pytest

from service.modes import LADDER, MODES, default_modes, doubles

DEVICES = ("cpu", "cuda")


def test_the_hand_captured_mode_is_inference_mode_less_its_launches() -> None:
    captured, plain = MODES["cuda-graph"], MODES["inference_mode"]
    effect = captured.effect("cuda")
    assert (captured.grad_mode, effect.without_replay) == (plain.grad_mode, plain.name)
    assert effect.graph_replay
    assert not effect.compiles


def test_the_modes_beyond_the_five_are_off_by_default() -> None:
    assert default_modes() == ["eager", "no_grad", "inference_mode", "compiled", "reduce-overhead"]
    assert {"cuda-graph", "max-autotune", "aot-inductor"} <= MODES.keys() - set(default_modes())


def test_no_cpu_row_replays_a_graph_and_one_that_runs_as_another_mode_says_why() -> None:
    for mode in LADDER:
        effect = mode.effect("cpu")
        assert not effect.graph_replay
        assert not effect.captured
        assert effect.name == mode.name or effect.reason


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_is_issued_by_operator_unless_it_is_compiled_or_captured(device: str) -> None:
    for mode in LADDER:
        effect = mode.effect(device)
        assert effect.by_operator != (effect.compiles or effect.captured)


def test_only_a_mode_that_runs_as_another_one_of_those_named_is_a_double() -> None:
    assert doubles(MODES, "cpu") == {"cuda-graph": "inference_mode", "compiled-captured": "compiled"}
    assert doubles(MODES, "cuda") == {}
    assert doubles(["eager", "cuda-graph"], "cpu") == {}
    assert doubles(["eager", "reduce-overhead", "a mode of an older version"], "cpu") == {}
