"""The device's own numbers: queued replays, the kernel table, and the bandwidth they are held against."""

from __future__ import annotations

import msgspec
import pytest
import torch

from service.measure.cases import Bench
from service.measure.step_costs import kernel_table
from service.records import EngineSettings
from service.statistics.boundedness import decode_bytes, roofline
from service.step.buffers import DECODE_POSITION
from service.step.device_time import CudaQueue, queued_time
from service.step.roofs import memory_bandwidth, step_bytes
from tests.gpu import NEEDS_CUDA

pytestmark = NEEDS_CUDA
MODE = "reduce-overhead"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    cache = str(tmp_path_factory.mktemp("cache"))
    settings = EngineSettings(
        address="", device="cuda", modes=[MODE], batch_sizes=[4], linears="aten", cache_folder=cache
    )
    return Bench(settings)


def test_a_small_buffer_is_copied_no_slower_than_a_large_one() -> None:
    """Caches: else the roof over a small model would be too low. A quarter is left for the ramp."""
    small, large = (memory_bandwidth(torch.device("cuda"), size) for size in (2**24, 2**28))
    assert small.kind == large.kind == "copy"
    assert small.bytes_per_second > 0.25 * large.bytes_per_second


def test_kernels_of_a_replay_take_no_longer_than_the_replay_nor_move_more_than_memory_can(
    bench: Bench,
) -> None:
    case = bench.case(MODE, 4)
    queued = queued_time(CudaQueue(), case.call)
    assert not queued.upper_bound
    table = kernel_table(bench, case, lambda line: None)
    assert table is not None
    assert table.left_out <= table.steps
    assert table.kernels > 1
    assert 0 < table.busy_seconds < 1.25 * queued.seconds.value
    assert sum(row.share for row in table.rows) == pytest.approx(1)
    sizes = step_bytes(bench.model, case.buffers)
    moved = decode_bytes(msgspec.structs.asdict(sizes), 4, DECODE_POSITION + 1)
    found = roofline(moved, queued.seconds, memory_bandwidth(bench.device, sizes.weights).bytes_per_second)
    assert found is not None
    assert 0 < found.share.value < 2
