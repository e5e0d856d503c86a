"""Warmed steps on shared buffers, with injected work; their rounds, cores and kernels."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator

import pytest
import torch

from models.checkpoint import save
from models.config import Config
from models.transformer import Transformer
from service.measure import rounds
from service.measure.cases import Bench, Case, build_case
from service.measure.rounds import OffCpuTime, isolated, paired_median_ratio
from service.measure.step_costs import table_of
from service.modes import MODES
from service.records import PHASES, EngineSettings
from service.step.buffers import DECODE_POSITION, allocate
from service.step.callables import build_step
from service.step.loaded_model import PRECISIONS
from service.step.trace import Event
from tests.step.made import kernel
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


# Rounds


def test_a_disturbed_round_does_not_widen_a_median_ratio() -> None:
    quiet = [1.0 + number / 1000 for number in range(20)]
    disturbed = [2.0 * value for value in quiet]
    disturbed[7] = 90.0
    ratio = paired_median_ratio(disturbed, quiet)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_share_off_the_cpu_is_of_all_counted_blocks_since_it_was_last_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall_ns, cpu_ns = iter([0, 100, 500, 800]), iter([0, 90, 400, 610])
    monkeypatch.setattr(rounds, "perf_counter_ns", lambda: next(wall_ns))
    monkeypatch.setattr(rounds, "thread_time_ns", lambda: next(cpu_ns))
    off_cpu = OffCpuTime()
    for _ in range(2):
        with off_cpu.counted():
            pass
    assert off_cpu.take_share() == pytest.approx(1 - 300 / 400)
    assert off_cpu.take_share() == 0.0


def test_an_isolated_block_runs_on_its_cores_and_the_threads_return_to_theirs() -> None:
    before = os.sched_getaffinity(0)
    gc.unfreeze()  # what was imported, which the collection of tests froze
    try:
        with isolated([min(before)]):
            assert os.sched_getaffinity(0) == {min(before)}
            assert gc.get_freeze_count() > 0
        assert os.sched_getaffinity(0) == before
    finally:
        gc.unfreeze()


# Kernels of steps by name, of traces made by hand


def step(*lengths: float, name: str = "a_kernel") -> list[Event]:
    """The kernels of one step, 100 µs apart."""
    return [kernel(name, 100.0 * place, 1, length) for place, length in enumerate(lengths)]


MIXED = [*step(3, 3, name="small"), kernel("large", 500.0, 1, 30)]


def test_no_kernels_are_unknown_and_not_zero() -> None:
    assert table_of([[], []]) is None


def test_rows_are_per_step_and_the_longest_first() -> None:
    found = table_of([MIXED, MIXED])
    assert [(row.name, row.per_step) for row in found.rows] == [("large", 1), ("small", 2)]
    assert [row.seconds for row in found.rows] == pytest.approx([30e-6, 6e-6])
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert found.kernels == 3
    assert found.busy_seconds == pytest.approx(36e-6)


def test_kernels_whose_long_names_differ_only_at_the_end_are_told_apart() -> None:
    common = "void at::native::vectorized_elementwise_kernel<4, " + "std::array<char*, 3ul>, " * 10
    first, second = (step(*lengths, name=common + end) for lengths, end in (((4, 4), "Add>"), ((2,), "Mul>")))
    found = table_of([first + second])
    assert [(row.name.removeprefix(common), row.per_step) for row in found.rows] == [("Add>", 2), ("Mul>", 1)]


def test_steps_that_lost_kernels_are_left_out_and_counted() -> None:
    found = table_of([step(8, 8), step(8, 8, 8), step(8, 8, 8), []])
    assert (found.steps, found.left_out, found.kernels) == (2, 2, 3)
