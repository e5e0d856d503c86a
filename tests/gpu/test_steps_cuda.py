"""What a step costs on a real device: its device time by both ways, its period, the profiler's cost."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial

import pytest
import torch

from service.engine.inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.records import EngineSettings
from service.step.process_state import prepare_process
from tests.gpu import NEEDS_CUDA

pytestmark = NEEDS_CUDA
MODES = ["eager", "inference_mode", "reduce-overhead", "compiled-captured"]
LAST = ("profiled", "later")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> LocalInbox:
    """Two requests per mode, then one that is profiled and another, of an engine of its own."""
    cache = os.environ.get("LAUNCHBOUND_CACHE_FOLDER") or str(tmp_path_factory.mktemp("cache"))
    prepare_process(cache, "tiny")  # so that the process that profiles finds what is compiled here
    prompts = ["import os"] * 4
    jobs = [local_job(f"{m}-{n}", m, prompts, 16, ignore_eos=True) for m in MODES for n in range(2)]
    jobs += [local_job(f"{one}-last", "eager", prompts, 16, profile=one == "profiled") for one in LAST]
    inbox = LocalInbox(jobs)
    settings = partial(EngineSettings, address="", device="cuda", batch_sizes=[1, 4], linears="aten")
    Engine(settings(modes=MODES, cache_folder=cache), inbox).run()
    torch.compiler.set_stance("default")
    return inbox


@pytest.mark.parametrize("mode", MODES)
def test_warm_up_has_learnt_the_device_time_of_every_step_by_both_ways(served: LocalInbox, mode: str) -> None:
    status = served.modes[mode]
    steps = {(phase, batch) for phase in ("decode", "prefill") for batch in (1, 4)}
    assert {(one.phase, one.batch) for one in status.device_times} == steps
    shapes = {("decode", 1): 4, ("prefill", 16): 4, ("prefill", 32): 4, ("prefill", 64): 4}
    found = Counter((one.phase, one.row_tokens, one.batch) for one in status.kernel_times)
    assert found == {(*step, batch): reaches for step, reaches in shapes.items() for batch in (1, 4)}
    kernels = {(one.phase, one.batch, one.row_tokens, one.attended_tokens) for one in status.kernel_times}
    assert {(o.phase, o.batch, o.row_tokens, o.attended_tokens) for o in status.device_times} <= kernels
    assert not any(one.upper_bound for one in status.device_times)


@pytest.mark.parametrize("mode", MODES)
def test_a_request_that_is_profiled_attaches_the_profiler_and_what_that_costs_is_known(
    served: LocalInbox, mode: str
) -> None:
    cost = served.modes[mode].profiler_cost
    assert cost is not None
    assert 0 < cost.low <= cost.ratio <= cost.high
    sources = [one.timings.dispatch_source for one in served.outcomes if one.timings]
    assert sources == ["measured"] * 2 * len(MODES) + ["attached"] * 2


def test_a_request_has_kernel_times_and_periods_that_hold_all_its_parts(served: LocalInbox) -> None:
    for outcome in served.outcomes[: -len(LAST)]:
        assert outcome.timings is not None
        assert outcome.timings.kernel_source == "sampled"
        for phase in (outcome.timings.prefill, outcome.timings.decode):
            assert phase.kernel_seconds is not None
            assert phase.period_seconds is not None
            assert phase.wall_seconds is not None
            assert phase.period_seconds == pytest.approx(sum(phase.period_steps_seconds))
            assert len(phase.dispatch_steps_seconds) == len(phase.period_steps_seconds) == phase.steps
        assert outcome.timings.decode.wall_seconds < outcome.timings.decode.period_seconds


@pytest.mark.parametrize("modes", [MODES[:2], MODES[2:]])
def test_modes_of_the_same_kernels_write_the_same_text(served: LocalInbox, modes: list[str]) -> None:
    """Though steps are launched before the tokens of the one before have arrived."""
    outputs = [
        [one.token_ids for one in outcome.outputs] for outcome in served.outcomes if outcome.mode in modes
    ]
    assert all(one == outputs[0] for one in outputs)
