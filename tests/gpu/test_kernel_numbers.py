"""Kernel numbers on a real device: the same in every session of a process, by id or by window."""

from __future__ import annotations

import pytest
from torch.autograd.profiler import profile as host_profile

from service.measure.cases import Bench, Case
from service.records import EngineSettings
from service.step.profiling import profile_step, warm_profiler
from tests.gpu import NEEDS_CUDA

pytestmark = NEEDS_CUDA

SESSIONS = 4


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    cache = str(tmp_path_factory.mktemp("cache"))
    made = Bench(
        EngineSettings(
            address="", modes=["inference_mode", "reduce-overhead"], batch_sizes=[4], cache_folder=cache
        )
    )
    warm_profiler(made.device)
    return made


@pytest.fixture(params=["inference_mode", "reduce-overhead"])
def case(request: pytest.FixtureRequest, bench: Bench) -> Case:
    return bench.case(request.param, 4)


def test_every_session_finds_the_same_kernels_and_says_how(case: Case) -> None:
    found = [profile_step(case.step, case.buffers, case.phase) for _ in range(SESSIONS)]
    assert [step.unknown for step in found] == [None] * SESSIONS
    assert {step.matched for step in found} <= {"correlation", "window"}
    assert len({step.kernels for step in found}) == 1
    assert len({step.launches for step in found}) == 1
    assert all(0 < (step.kernel_seconds or 0) <= (step.kernel_sum_seconds or 0) for step in found)


def test_plain_launches_are_as_many_as_kernels_and_a_replay_is_one(bench: Bench) -> None:
    cases = [bench.case(mode, 4) for mode in ("inference_mode", "reduce-overhead")]
    plain, replayed = (profile_step(case.step, case.buffers) for case in cases)
    assert plain.launches == plain.kernels
    assert (replayed.launches, replayed.graph_launches) == (1, 1)
    assert replayed.kernels is not None
    assert replayed.kernels > 1


def test_a_session_of_the_host_alone_does_not_blind_later_ones(case: Case) -> None:
    with host_profile():
        case.call()
    assert profile_step(case.step, case.buffers, case.phase).kernels is not None
