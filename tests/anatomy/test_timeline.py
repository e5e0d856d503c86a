"""A timeline: two modes from one origin, each block where the profiler recorded it, and the tax."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from service.anatomy import timeline
from service.anatomy.common import StudyError
from service.anatomy.step_times import StepTimes
from service.measure.cases import Bench
from service.records import SampleCounts
from service.statistics.intervals import Interval
from service.step.trace import NOTHING_RECORDED, STEP_MARK
from tests.anatomy.conftest import printed
from tests.step.made import event, replays, without_device_work
from tests.support.small_models import quiet

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("timeline") / "new"


@pytest.fixture(scope="module")
def finding(bench: Bench, folder: Path) -> timeline.TimelineFinding:
    """Eager against compiled, written to `folder`."""
    return timeline.draw_timeline(
        bench, timeline.TimelineArguments(against="compiled", batch_size=2, out=str(folder)), quiet
    )


ON_CUDA = [
    event("user_annotation", STEP_MARK, 1000, 100),
    event("cpu_op", "aten::mm", 1010, 40),
    event("cuda_runtime", "cudaLaunchKernel", 1020, 10, correlation=7),
    event("cuda_runtime", "cudaMemcpyAsync", 1060, 10, correlation=8, tid=99),
    event("cpu_op", "aten::elsewhere", 1060, 10, tid=2),
    event("kernel", "gemm", 1035, 50, correlation=7, stream=20),
    event("gpu_memcpy", "Memcpy", 1110, 30, correlation=8, stream=20),
    event("cuda_runtime", "cudaLaunchKernel", 1130, 5, correlation=5),
    event("kernel", "of another step", 1160, 5, correlation=5, stream=20),
]

REPLAYS = replays(3, kernel_id=lambda step: 9000 + step)
"""The correlation ids of kernels are of no launch in this trace."""


def test_both_modes_begin_at_zero_and_none_of_their_host_blocks_leaves_the_step(
    finding: timeline.TimelineFinding,
) -> None:
    assert [track.mode for track in finding.tracks] == ["eager", "compiled"]
    for track in finding.tracks:
        mark = track.blocks[0]
        assert (mark.name, mark.begin_us, mark.depth) == (STEP_MARK, 0.0, 0)
        assert all(0 <= b.begin_us < mark.duration_us and b.depth > 0 for b in track.blocks[1:])
        assert mark.duration_us == pytest.approx(track.profiled_seconds * 1e6)
    text = printed(finding)
    assert [word for word in ("eager", "compiled", "speedup", timeline.TRACE_FILE) if word not in text] == []
    assert STEP_MARK not in text


def test_the_trace_file_has_two_named_processes_whose_steps_share_their_origin(
    finding: timeline.TimelineFinding, folder: Path
) -> None:
    assert timeline.TRACE_FILE in finding.files
    with gzip.open(folder / timeline.TRACE_FILE, "rt") as file:
        events = json.load(file)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert names == {1: "eager (eager)", 2: "compiled (compiled)"}
    assert {(e["pid"], e["ts"]) for e in events if e["name"] == STEP_MARK} == {(1, 0.0), (2, 0.0)}


def test_device_work_is_that_of_the_steps_own_calls_and_may_end_after_the_step_has_returned() -> None:
    step = timeline.read_step(ON_CUDA, cuda=True)
    device = [block for block in step.blocks if block.lane == "device"]
    assert [(b.name, b.kind, b.begin_us, b.row) for b in device] == [
        ("gemm", "kernel", 35, 20),
        ("Memcpy", "copy", 110, 20),
    ]
    assert "aten::elsewhere" not in {block.name for block in step.blocks}
    assert step.profiled_seconds == pytest.approx(140e-6)
    assert step.counted.kernel_seconds == pytest.approx(50e-6)


def test_unknown_kernels_are_no_device_blocks_and_no_tax_rather_than_one_of_100_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = timeline.read_step(without_device_work(REPLAYS), cuda=True)
    assert {block.lane for block in unknown.blocks} == {"host"}
    assert unknown.counted.kernels is None
    monkeypatch.setattr(timeline, "record_step", lambda *_: unknown)
    bench = cast("Any", SimpleNamespace(device=torch.device("cuda")))
    case = cast("Any", SimpleNamespace(mode="reduce-overhead", phase="decode"))
    track = timeline._track(bench, case, StepTimes([1e-3] * 9))
    assert (track.kernels, track.kernel_seconds, track.tax) == (None, None, None)
    assert track.launches == 1
    assert track.no_tax == NOTHING_RECORDED


def test_the_tax_is_the_hosts_share_of_samples_on_a_cpu_and_what_kernels_leave_of_the_wall_on_cuda() -> None:
    known = timeline.tax_by_samples(SampleCounts(kernel=700, host=300, system=50))
    widened = timeline.tax_by_samples(SampleCounts(kernel=700, host=300, unclassified=200))
    assert known is not None
    assert widened is not None
    assert known.fraction.value == widened.fraction.value == pytest.approx(0.3)
    assert widened.fraction.low < known.fraction.low < 0.3 < known.fraction.high < widened.fraction.high
    assert timeline.tax_by_samples(SampleCounts(system=9)) is None
    assert timeline.tax_by_samples(SampleCounts(kernel=9, host=9, unclassified=9)) is None
    on_cuda = timeline.tax_by_kernels(30.0, Interval(100.0, 60.0, 120.0, 60)).fraction
    assert (on_cuda.value, on_cuda.low, on_cuda.high) == pytest.approx((0.7, 0.5, 0.75))


def test_a_thread_that_cannot_be_sampled_has_no_tax_and_the_reason_instead(
    bench: Bench, unsampled: str
) -> None:
    found = timeline.draw_timeline(bench, timeline.TimelineArguments(mode="no_grad"), quiet)
    assert found.tracks[0].tax is None
    assert found.tracks[0].no_tax == unsampled
    text = printed(found)
    assert unsampled in text


def test_a_folder_that_cannot_be_made_is_refused(finding: timeline.TimelineFinding, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="cannot write") as refused:
        timeline.write(finding, tmp_path / "file")
    assert refused.value.param == "out"


def test_the_speedup_pairs_the_rounds_of_both_tracks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [1.0, 2.0, 4.0, 1.0, 2.0, 4.0]
    times = {0: StepTimes(rounds, rounds), 1: StepTimes(rounds, [half / 2 for half in rounds])}
    monkeypatch.setattr(timeline, "time_steps", lambda *_: times)
    found = timeline.draw_timeline(bench, timeline.TimelineArguments(against="inference_mode"), quiet)
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(2.0)
    assert (found.speedup.low, found.speedup.high) == (pytest.approx(2.0), pytest.approx(2.0))
