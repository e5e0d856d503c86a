"""Warmed steps of the served model on shared buffers, and with injected work."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
import torch

from models.checkpoint import save
from models.config import Config
from models.transformer import Transformer
from service.measure.cases import Bench, Case, build_case
from service.modes import MODES
from service.records import PHASES, EngineSettings
from service.step.buffers import DECODE_POSITION, allocate
from service.step.callables import build_step
from service.step.loaded_model import PRECISIONS
from tests.support.small_models import CONFIG, SMALL

SHORT = Config(layers=1, width=16, heads=2, kv_heads=1, head_width=8, hidden=32, vocabulary=64, context=32)
MODE = "inference_mode"


@pytest.fixture(scope="module")
def settings() -> Iterator[EngineSettings]:
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        save(Transformer(CONFIG, 2, seed=5), folder)
        yield EngineSettings(
            address="", model=folder, device="cpu", modes=["eager", MODE], batch_sizes=[1, 2], threads=1,
            linears="aten", cache_folder="",
        )  # fmt: skip
    torch.set_num_threads(threads)


def small_case(calls: list[int], phase: str = "decode", config: Config = SHORT) -> Case:
    model = Transformer(config, 1).eval()
    buffers = allocate(model, [1], 4)[1]
    return build_case(MODE, phase, model, buffers, PRECISIONS["float32"], lambda: calls.append(1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase", "config", "position"),
    [("decode", CONFIG, DECODE_POSITION), ("decode", SHORT, SHORT.context - 1), ("prefill", CONFIG, 0)],
)
def test_a_step_stands_at_the_decode_position_within_its_context_or_at_the_start(
    phase: str, config: Config, position: int
) -> None:
    assert small_case([], phase, config).buffers.positions.tolist() == [position]


def test_the_bench_builds_a_step_once_and_all_modes_share_its_tokens_and_cache(
    settings: EngineSettings,
) -> None:
    bench = Bench(settings)
    case = bench.case(MODE, 2)
    assert bench.case(MODE, 2) is case
    for other in (bench.case("eager", 2), bench.case(MODE, 2, "prefill")):
        assert other.buffers.caches is case.buffers.caches is bench.buffers[2].caches
        assert other.buffers.chunks is case.buffers.chunks
    bench.forget()
    assert bench.case(MODE, 2) is not case
    with pytest.raises(KeyError):
        bench.case(MODE, 3)


def test_a_step_stays_at_its_place_in_the_cache_whatever_is_built_or_runs_after_it(
    settings: EngineSettings,
) -> None:
    bench = Bench(settings)
    cases = {(phase, mode): bench.case(mode, 2, phase) for phase in PHASES for mode in (MODE, "eager")}
    expected = cases["prefill", MODE].call()[0].clone()
    cases["decode", MODE].steady_seconds(1)
    bench.buffers[2].positions.fill_(CONFIG.context - 1)  # where a request left them
    assert torch.equal(cases["prefill", MODE].call()[0], expected)
    for (phase, _), case in cases.items():
        assert case.buffers.positions.unique().tolist() == [0 if phase == "prefill" else DECODE_POSITION]
        assert case.buffers.last.unique().tolist() == [0]


def test_injected_work_runs_once_per_step_in_the_steps_grad_mode_and_changes_no_result() -> None:
    model = Transformer(SMALL, 1).eval()
    buffers = allocate(model, [1], 1)[1]
    seen: list[bool] = []
    plain = build_step(MODES[MODE], model)
    injected = build_step(MODES[MODE], model, lambda: seen.append(torch.is_inference_mode_enabled()))
    expected = plain(*buffers.arguments("decode"))[0].clone()
    assert torch.equal(injected(*buffers.arguments("decode"))[0], expected)
    assert seen == [True]
