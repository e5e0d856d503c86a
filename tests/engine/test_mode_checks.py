"""What shows that a mode is what its row says, and what its status says where nothing does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo_config

from models.checkpoint import build
from service.engine.compiler import ColdStarts, CompileCounts, unlike
from service.engine.step_shares import StepShares
from service.engine.warmup import PHASES, ConfiguredMode, Warmup, verify_graph_replay
from service.modes import MODES, Mode
from service.records import ModeStatus
from service.step.buffers import CALLS_TO_CAPTURE, Arguments, Buffers, allocate
from service.step.callables import Step
from tests.engine.serving import serve

SKIPPED = "CUDA graphs were skipped: "


@pytest.mark.parametrize(
    ("mode", "decode", "prefill", "skips", "effective", "reason"),
    [
        ("reduce-overhead", 1, 1, 0, "reduce-overhead", None),
        ("reduce-overhead", 0, 1, 0, "compiled", SKIPPED + "0 replays per decode step at batch 1"),
        ("reduce-overhead", 1, 2, 0, "compiled", SKIPPED + "2 replays per prefill step at batch 1"),
        ("reduce-overhead", 1, 1, 2, "compiled", SKIPPED + "torch gave them up for 2 compiled callables"),
        # What the service captures it replays itself, or raises.
        ("cuda-graph", 0, 0, 0, "cuda-graph", None),
    ],
)
def test_a_mode_keeps_its_name_where_each_step_replays_one_graph(
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    decode: int,
    prefill: int,
    skips: int,
    effective: str,
    reason: str | None,
) -> None:
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: None)

    def replaying(count: int) -> Any:
        return lambda *_: [torch.cuda.CUDAGraph.replay(cast("Any", None)) for _ in range(count)]

    row = MODES[mode]
    status = ModeStatus(mode=mode, removes=row.removes, state="warming", effective=row.cuda.name)
    one = ConfiguredMode(row, status)
    one.steps.update({("decode", 1): replaying(decode), ("prefill", 1): replaying(prefill)})
    buffers = allocate(build("tiny", max_batch=1), [1], prefill_chunk=32)
    verify_graph_replay(one, buffers, skips)
    assert (one.status.effective, one.status.reason) == (effective, reason)


COMPILED = CompileCounts(graphs=4, wrappers=4)


@pytest.mark.parametrize(
    ("name", "seen", "found"),
    [
        ("compiled", COMPILED, None),
        ("reduce-overhead", replace(COMPILED, cpp_wrappers=4), None),
        ("max-autotune", replace(COMPILED, cpp_wrappers=4, frozen=4), None),
        ("inference_mode", CompileCounts(), None),
        ("compiled", CompileCounts(), "of 4 callables 0 were compiled"),
        ("compiled", replace(COMPILED, graphs=3), "of 4 callables 3 were compiled"),
        ("compiled", replace(COMPILED, wrappers=0), "of 4 callables 0 were compiled by Inductor"),
        ("compiled", replace(COMPILED, cpp_wrappers=4), "4 of 4 wrappers are C\\+\\+"),
        ("compiled", replace(COMPILED, frozen=1), "1 of 4 graphs have the weights as constants"),
        ("reduce-overhead", COMPILED, "0 of 4 wrappers are C\\+\\+"),
        ("max-autotune", replace(COMPILED, cpp_wrappers=4), "0 of 4 graphs have the weights as constants"),
    ],
)
def test_a_mode_that_was_counted_as_another_one_says_as_what_and_what_to_do_and_no_other_does(
    monkeypatch: pytest.MonkeyPatch, name: str, seen: CompileCounts, found: str | None
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_SOMETHING", "1")
    why = unlike(MODES[name].cpu, 4, seen)
    assert (why is None) == (found is None)
    if why is not None and found is not None:
        assert re.search(found, why)
        assert "start the service without TORCHINDUCTOR_SOMETHING=1" in why


@pytest.mark.slow
@pytest.mark.usefixtures("restored_globals")
@pytest.mark.parametrize("off", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_a_mode_that_compiles_nothing_fails_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    monkeypatch.setenv(off, "1")
    with dynamo_config.patch(disable=off == "TORCH_COMPILE_DISABLE"):  # which torch reads as it is imported
        found = serve(tmp_path, [], modes=["eager", "compiled", "reduce-overhead"], batch_sizes=[1]).modes
    assert found["eager"].state == "ready"
    for mode in ("compiled", "reduce-overhead"):
        assert (found[mode].state, found[mode].cache, found[mode].compilations) == ("failed", None, [])
        assert f"start the service without {off}=1" in str(found[mode].detail)


SERVE = """
import sys
from pathlib import Path
from tests.engine.serving import serve
from service.step.process_state import prepare_process
prepare_process(sys.argv[1])
inbox = serve(Path(sys.argv[1]), [], modes=["eager", "compiled"], batch_sizes=[1])
from torch._dynamo.utils import counters
mode = inbox.modes["compiled"]
print(mode.state, mode.detail, mode.cache, counters["launchbound"]["cpp_wrappers"])
"""


@pytest.mark.long
@pytest.mark.compiles
def test_torchs_variables_do_not_make_one_mode_what_another_one_is(tmp_path: Path) -> None:
    """Although the caches are off as well: then every start is a cold one, and says so."""
    names = ("CPP_WRAPPER", "FREEZING", "MAX_AUTOTUNE", "COORDINATE_DESCENT_TUNING", "CUDAGRAPHS")
    others = {"TORCHDYNAMO_SUPPRESS_ERRORS": "1", "TORCH_COMPILE_OVERRIDE_BACKENDS": ">=0:eager"}
    environment = {f"TORCHINDUCTOR_{name}": "1" for name in names} | others
    environment["TORCH_COMPILE_FORCE_DISABLE_CACHES"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ready None cold 0"


Shape = tuple[int, int]
"""Tokens per row, and positions of the cache."""


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build("tiny", max_batch=1)


@pytest.fixture(scope="module")
def buffers(model: nn.Module) -> Buffers:
    return allocate(model, [1], prefill_chunk=64)[1]  # type: ignore[arg-type]


def shape(arguments: Arguments) -> Shape:
    return arguments[0].shape[1], arguments[3][0][0].shape[1]


def called(model: nn.Module, buffers: Buffers, name: str, folder: Path) -> Counter[Shape]:
    """How often the steps of a mode are called in each shape while it is captured on CUDA."""
    calls: Counter[Shape] = Counter()

    def make(mode: Mode, of: nn.Module) -> Step:
        return lambda *arguments: calls.update([shape(arguments)])  # type: ignore[return-value]

    cold_starts, shares = ColdStarts(folder, "key"), StepShares(folder, missing="nothing is sampled here")
    made = Warmup([name], model, {1: buffers}, lambda _: None, make, cold_starts, shares, None)  # type: ignore[arg-type]
    made._device = torch.device("cuda")
    for _ in made.serving(made.modes[name]):
        continue
    return calls


@pytest.mark.parametrize(
    ("mode", "times"),
    [
        ("eager", 1),
        ("no_grad", 1),
        ("inference_mode", 1),
        ("compiled", 1),
        ("reduce-overhead", CALLS_TO_CAPTURE - 1),
    ],
)
def test_on_cuda_every_mode_is_called_in_every_shape(
    model: nn.Module, buffers: Buffers, mode: str, times: int, tmp_path: Path
) -> None:
    shapes = {shape(arguments) for phase in PHASES for arguments in buffers.shapes(phase)}
    calls = called(model, buffers, mode, tmp_path)
    assert calls.keys() == shapes
    assert min(calls.values()) == times
