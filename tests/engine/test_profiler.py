"""Which requests are profiled, whose kernel times others have, and what a GPU engine measures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from models.checkpoint import build
from service.engine import profiler
from service.engine.generation import JobResult
from service.engine.inbox import local_job
from service.engine.outcome import timings, totals
from service.engine.warmup import ConfiguredMode
from service.modes import MODES
from service.records import ModeStatus
from service.step.buffers import Buffers, allocate
from service.step.meters import HostMeter, Meter, Readings, step_shape
from service.step.profiling import FEW_STEPS, INTERVAL_STEPS
from service.step.trace import ProfiledStep, StepShape
from tests.support.fake_cuda import FakeDevice

PLAIN = local_job("plain", "eager", ["x"], 4)
ASKED = local_job("asked", "eager", ["x"], 4, profile=True)


class Turns:
    """Which requests are due, in an engine whose profiler has run; `now` is its clock in seconds."""

    def __init__(self, every: int | None, device: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(profiler, "perf_counter_ns", lambda: round(self.now * 1e9))
        patch.setattr(profiler, "Profiler", lambda *_: self)
        self.requests = profiler.RequestProfiler(torch.device(device), every, folder)
        self.requests.used = True

    def run(self, *_: object) -> list[ProfiledStep]:
        self.now += 0.25
        return []

    def due(self, requests: int) -> list[int]:
        return [number for number in range(1, requests + 1) if self.requests.is_due(PLAIN)]


@pytest.mark.parametrize(
    ("every", "device", "expected"),
    [
        (None, "cpu", []),
        (None, "cuda", [profiler.DEFAULT_EVERY, 2 * profiler.DEFAULT_EVERY]),
        (0, "cuda", []),
        (150, "cpu", [150, 300, 450]),
    ],
)
def test_one_request_in_so_many_is_due_and_any_that_asks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, every: int | None, device: str, expected: list[int]
) -> None:
    turns = Turns(every, device, tmp_path, monkeypatch)
    assert turns.due(2 * profiler.DEFAULT_EVERY + 50) == expected
    assert turns.requests.is_due(ASKED)


@pytest.mark.parametrize(("every", "early"), [(None, []), (profiler.DEFAULT_EVERY, [profiler.DEFAULT_EVERY])])
def test_by_default_profiling_takes_no_more_than_its_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, every: int | None, early: list[int]
) -> None:
    turns = Turns(every, "cuda", tmp_path, monkeypatch)
    turns.requests.profile(ASKED, JobResult(), HostMeter(), lambda _: None)
    turns.now += 0.25 / profiler.MOST_SHARE - 1e-6
    assert turns.due(profiler.DEFAULT_EVERY) == early
    turns.now += 1e-6
    assert turns.due(profiler.DEFAULT_EVERY) == [profiler.DEFAULT_EVERY]


PREFILL, SHORT, LONG = StepShape(16, 64), StepShape(1, 64), StepShape(1, 128)


@pytest.mark.parametrize(
    ("found", "source", "seconds", "kernels"),
    [
        ((9e-4, 2e-4, 2e-4, 3e-4), "profiled", (9e-4, 7e-4), 4 * 90),
        # One step of decode lost its kernels, so that the short ones are as those that were learnt before.
        ((9e-4, 2e-4, None, 3e-4), "sampled", (9e-4, 2 * 1e-4 + 3e-4), None),
    ],
)
def test_a_trace_is_the_request_s_own_where_it_has_all_kernels_and_else_not_called_exact_nor_counted(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    found: tuple[float | None, ...],
    source: str,
    seconds: tuple[float, float],
    kernels: int | None,
) -> None:
    class FakeProfiler:
        """Finds one prefill step and three of decode, the last of which reads further."""

        def run(self, _: str, about: Any, meter: Any, action: Callable[[Meter], None]) -> list[ProfiledStep]:
            action(meter)
            counts = [seconds and 90 for seconds in found]
            return [
                ProfiledStep(1, shape, kernels=count, launches=90, kernel_seconds=seconds)  # type: ignore[arg-type]
                for shape, count, seconds in zip(shapes, counts, found, strict=True)
            ]

    monkeypatch.setattr(profiler, "Profiler", lambda *_: FakeProfiler())
    one = profiler.RequestProfiler(torch.device("cuda"), None, tmp_path)
    one.kernel_times.add(("eager", "decode", 4), SHORT, [1e-4] * 8)
    shapes = [PREFILL, SHORT, SHORT, LONG]
    prefill, decode = Readings(call=[1], shapes=shapes[:1]), Readings(call=[1] * 3, shapes=shapes[1:])
    result = JobResult(bucket=4, prefill=prefill, decode=decode)
    assert one.estimates(PLAIN, result, {}).kernel_per_step_seconds == {
        "prefill": {},
        "decode": {SHORT: 1e-4},
    }
    result.profile = one.profile(ASKED, result, HostMeter(), lambda _: None)
    estimates = one.estimates(ASKED, result, {})
    assert estimates.kernel_source == source
    whole = timings(result, estimates, done_ns=0)
    assert (whole.prefill.kernel_seconds, whole.decode.kernel_seconds) == pytest.approx(seconds)
    assert totals(result) == (kernels, 4 * 90)
    learnt = one.estimates(PLAIN, JobResult(bucket=4), {}).kernel_per_step_seconds
    assert learnt == {"prefill": {PREFILL: 9e-4}, "decode": {SHORT: 1e-4, LONG: 3e-4}}


BUCKETS = (1, 4)


@pytest.fixture(scope="module")
def buffers() -> dict[int, Buffers]:
    return allocate(build("tiny", max_batch=4), list(BUCKETS), prefill_chunk=64)


class FakeWarmup:
    """Two modes with a step per phase and bucket, which run on `device`; the second has failed, later."""

    def __init__(self, device: FakeDevice) -> None:
        self.sent: list[ModeStatus] = []
        self.modes = {}
        for name in ("eager", "no_grad", "compiled"):
            status = ModeStatus(mode=name, removes="", state="ready", effective=name)
            steps: Any = {(p, b): lambda *_: device.call() for p in ("decode", "prefill") for b in BUCKETS}
            self.modes[name] = ConfiguredMode(MODES[name], status, {} if name == "compiled" else steps)

    def ready(self) -> dict[str, ConfiguredMode]:
        return {"eager": self.modes["eager"]}

    def update(self, configured: ConfiguredMode, **changes: object) -> None:
        configured.status = msgspec.structs.replace(configured.status, **changes)
        self.sent.append(configured.status)


class Measured:
    """Measurements over fakes, and what came of them."""

    def __init__(self, buffers: dict[int, Buffers]) -> None:
        device: Any = FakeDevice(issue_seconds=10e-6, step_seconds=100e-6)
        self.warmup: Any = FakeWarmup(device)
        self.profiler: Any = SimpleNamespace(kernel_times=profiler.KernelTimes(), used=False)
        self.profiler.warm = lambda: setattr(self.profiler, "used", True)
        self.made = profiler.DeviceMeasurements(self.warmup, buffers, self.profiler, device)


@pytest.fixture
def measured(buffers: dict[int, Buffers]) -> Measured:
    return Measured(buffers)


def test_every_step_of_every_ready_mode_has_both_measurements(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[list[int]] = []

    def profile(step: Any, plan: Any) -> list[ProfiledStep]:
        sessions.append([count for _, count in plan])
        return [
            ProfiledStep(
                1, step_shape(arguments), kernel_seconds=1e-6 * step_shape(arguments).attended_tokens
            )
            for arguments, count in plan
            for _ in range(count)
        ]

    monkeypatch.setattr(profiler, "profile_steps", profile)
    assert len(list(measured.made.learn())) == 4
    (status,) = measured.warmup.sent
    expected = {(phase, batch) for phase in ("decode", "prefill") for batch in BUCKETS}
    usual = {"decode": (1, 64), "prefill": (32, 64)}
    assert {(one.phase, one.batch) for one in status.device_times} == expected
    assert all((one.row_tokens, one.attended_tokens) == usual[one.phase] for one in status.device_times)
    assert all(one.seconds == pytest.approx(100e-6) for one in status.device_times)
    shapes = [("decode", 1), *(("prefill", length) for length in (16, 32, 64))]
    found = {(one.phase, one.row_tokens, one.attended_tokens, one.batch) for one in status.kernel_times}
    assert found == {(*s, reach, b) for s, reach, b in product(shapes, (64, 128, 256, 512), BUCKETS)}
    for one in status.kernel_times:
        seconds = one.attended_tokens * 1e-6
        of_interval = (one.row_tokens, one.attended_tokens) == usual[one.phase]
        assert (one.low, one.high) == ((seconds, seconds) if of_interval else (None, None))
        assert (one.seconds, one.samples) == (seconds, INTERVAL_STEPS if of_interval else FEW_STEPS)
    decode, prefill = ([INTERVAL_STEPS] + [FEW_STEPS] * others for others in (3, 11))
    assert sessions == [decode] * 2 + [prefill] * 2
    assert measured.made.missing is None


def test_a_profiler_that_fails_costs_the_numbers_and_says_why_unless_the_device_is_lost(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise error

    error = RuntimeError("CUPTI_ERROR_NOT_INITIALIZED")
    monkeypatch.setattr(profiler, "profile_steps", fail)
    monkeypatch.setattr(profiler, "decode_dispatch", fail)
    assert [*measured.made.learn(), *measured.made.attach()] == []
    why = "RuntimeError: CUPTI_ERROR_NOT_INITIALIZED"
    assert measured.made.missing == why
    assert measured.made.profiler_note == f"what the profiler costs is not known: {why}"
    assert measured.warmup.sent == []
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    for work in (measured.made.learn(), measured.made.attach()):
        with pytest.raises(torch.AcceleratorError):
            list(work)


@pytest.mark.parametrize(("slowdown", "matters"), [(1.0, False), (1.04, False), (1.2, True)])
def test_every_captured_mode_is_measured_before_the_profilers_first_session_and_after_it(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, slowdown: float, matters: bool
) -> None:
    """A slow-down that is beyond doubt is in the note with the remedy."""
    taken: list[bool] = []

    def dispatch(step: Any, buffers: Buffers) -> float:
        assert buffers.bucket == 1
        taken.append(measured.profiler.used)
        return (1 + 0.001 * (len(taken) % 3)) * (slowdown if measured.profiler.used else 1.0)

    monkeypatch.setattr(profiler, "decode_dispatch", dispatch)
    for _ in measured.made.attach():
        assert measured.warmup.sent == []
    assert taken == [False] * 2 * profiler.ROUNDS + [True] * 2 * profiler.ROUNDS
    costs = {status.mode: status.profiler_cost for status in measured.warmup.sent}
    assert costs.keys() == {"eager", "no_grad"}
    for cost in costs.values():
        assert cost is not None
        assert cost.ratio == pytest.approx(slowdown, abs=0.003)
        assert cost.low < cost.ratio < cost.high
        assert (cost.rounds, cost.matters) == (profiler.ROUNDS, matters)
    note = measured.made.profiler_note
    assert (note is not None) == matters
    if note is not None:
        assert "eager 1.20 (95 % interval 1." in note
        assert note.endswith(profiler.REMEDY)
        assert "not proved on this GPU: compare the parity" in note


def test_where_a_request_was_profiled_first_the_cost_is_said_to_be_unknown(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "decode_dispatch", lambda *_: 1e-3)
    measured.profiler.warm()
    list(measured.made.attach())
    assert measured.made.profiler_note == profiler.UNKNOWN
    assert measured.warmup.sent == []
