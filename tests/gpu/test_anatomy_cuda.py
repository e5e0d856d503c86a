"""The anatomy of a step on a real device."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from service.anatomy.operators.study import OperatorsArguments, list_operators
from service.measure.cases import Bench
from service.records import EngineSettings
from service.step.trace import LAUNCH_CALLS
from tests.gpu import NEEDS_CUDA

pytestmark = NEEDS_CUDA


@pytest.mark.parametrize("mode", ["inference_mode", "reduce-overhead"])
def test_launches_and_kernels_are_the_profilers(tmp_path_factory: pytest.TempPathFactory, mode: str) -> None:
    cache = str(tmp_path_factory.mktemp("cache"))
    bench = Bench(EngineSettings(address="", modes=[mode], batch_sizes=[4], cache_folder=cache))
    finding = list_operators(bench, OperatorsArguments(mode=mode, batch_size=4), lambda words: None)
    case = bench.case(mode, 4)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as session:
        case.call()
        torch.cuda.synchronize()
    names = [event.name for event in session.events() or []]
    assert finding.launches == sum(name in LAUNCH_CALLS for name in names) > 0
    assert finding.kernels is not None
    assert finding.kernels >= finding.launches
    assert finding.no_device is None
    assert finding.kernel_table is not None
    assert finding.kernel_table.kernels >= finding.launches
    assert finding.syncs == []
