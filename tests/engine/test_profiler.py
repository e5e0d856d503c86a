"""Which requests are profiled, whose kernel times others have, and what a GPU engine measures."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import torch

from models.checkpoint import Checkpoint
from service.engine import kernel_process, profiler
from service.engine.inbox import local_job
from service.engine.job import JobResult
from service.engine.kernel_process import KernelProcess, Profiled
from service.engine.outcome import timings, totals
from service.engine.warmup import ConfiguredMode
from service.modes import MODES
from service.records import ModeStatus
from service.step.buffers import Buffers, allocate
from service.step.meters import HostMeter, Meter, Readings
from service.step.profiling import FEW_STEPS, INTERVAL_STEPS
from service.step.trace import ProfiledStep, StepShape
from tests.engine.serving import settings
from tests.support.fake_cuda import FakeDevice

PLAIN = local_job("plain", "eager", ["x"], 4)
ASKED = local_job("asked", "eager", ["x"], 4, profile=True)


@pytest.mark.parametrize(("every", "expected"), [(0, []), (150, [150, 300, 450])])
def test_one_request_in_so_many_is_due_and_any_that_asks(
    tmp_path: Path, every: int, expected: list[int]
) -> None:
    requests = profiler.RequestProfiler(torch.device("cpu"), every, tmp_path)
    assert [number for number in range(1, 500) if requests.is_due(PLAIN)] == expected
    assert requests.is_due(ASKED)


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
    one = profiler.RequestProfiler(torch.device("cuda"), 0, tmp_path)
    one.kernel_times.add(("eager", "decode", 4), SHORT, [1e-4] * 8)
    shapes = [PREFILL, SHORT, SHORT, LONG]
    prefill, decode = Readings(call=[1], shapes=shapes[:1]), Readings(call=[1] * 3, shapes=shapes[1:])
    result = JobResult(bucket=4, prefill=prefill, decode=decode)
    assert one.estimates(PLAIN, result, {}).kernel_per_step_seconds == {
        "prefill": {},
        "decode": {SHORT: 1e-4},
        "forward": {},
    }
    assert not one.estimates(PLAIN, result, {}).attached
    before: list[bool] = []
    one.before_first = lambda: before.append(one.used)
    result.profile = one.profile(ASKED, result, HostMeter(), lambda _: None)
    assert before == [False]
    estimates = one.estimates(ASKED, result, {})
    assert estimates.attached
    assert estimates.kernel_source == source
    whole = timings(result, estimates, done_ns=0)
    assert whole.dispatch_source == "attached"
    assert (whole.prefill.kernel_seconds, whole.decode.kernel_seconds) == pytest.approx(seconds)
    assert totals(result) == (kernels, 4 * 90)
    learnt = one.estimates(PLAIN, JobResult(bucket=4), {}).kernel_per_step_seconds
    assert learnt == {"prefill": {PREFILL: 9e-4}, "decode": {SHORT: 1e-4, LONG: 3e-4}, "forward": {}}


BUCKETS = (1, 4)


@pytest.fixture(scope="module")
def buffers() -> dict[int, Buffers]:
    return allocate(Checkpoint("tiny").build(max_batch=4), list(BUCKETS), prefill_chunk=64)


class FakeWarmup:
    """Three modes, of which the first is ready; its steps run on `device`."""

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


class FakeProcess:
    """Finds in every step kernels of 1 µs per attended position, unless it `fails`."""

    def __init__(self) -> None:
        self.fails: dict[str, str] = {}
        self.open = True
        self.asked: list[str] = []

    def capture(self, mode: str) -> None:
        self.asked.append(mode)

    def captured(self, mode: str) -> Iterator[None]:
        yield
        self._answer("capture")

    def profiled(self, mode: str) -> list[Profiled]:
        assert mode == "eager"
        self._answer("profile")
        shapes = [StepShape(1, 64)] * INTERVAL_STEPS + [StepShape(1, 128)] * FEW_STEPS
        steps = [ProfiledStep(1, one, 90, kernel_seconds=1e-6 * one.attended_tokens) for one in shapes]
        return [Profiled("decode", 4, steps)]

    def _answer(self, request: str) -> None:
        if request in self.fails:
            raise RuntimeError(self.fails[request])

    def close(self) -> None:
        self.open = False


class Measured:
    """Measurements over fakes, and what came of them."""

    def __init__(self, buffers: dict[int, Buffers]) -> None:
        device: Any = FakeDevice(issue_seconds=10e-6, step_seconds=100e-6)
        self.warmup: Any = FakeWarmup(device)
        self.profiler: Any = SimpleNamespace(kernel_times=profiler.KernelTimes(), used=False)
        self.profiler.warm = lambda: setattr(self.profiler, "used", True)
        self.process: Any = FakeProcess()
        self.made = profiler.DeviceMeasurements(
            self.warmup, buffers, self.profiler, device, lambda: self.process
        )


@pytest.fixture
def measured(buffers: dict[int, Buffers]) -> Measured:
    return Measured(buffers)


def test_every_step_of_every_ready_mode_is_queued_and_profiled_elsewhere(measured: Measured) -> None:
    measured.made.follow()
    for _ in measured.made.learn():
        measured.made.follow()  # as the engine does between any two pieces of its warm-up
    assert measured.process.asked == ["eager"]
    status = measured.warmup.sent[-1]
    expected = {(phase, batch) for phase in ("decode", "prefill") for batch in BUCKETS}
    usual = {"decode": (1, 64), "prefill": (32, 64)}
    assert {(one.phase, one.batch) for one in status.device_times} == expected
    assert all((one.row_tokens, one.attended_tokens) == usual[one.phase] for one in status.device_times)
    assert all(one.seconds == pytest.approx(100e-6) for one in status.device_times)
    short, long = status.kernel_times
    assert (short.attended_tokens, short.seconds, short.low, short.high) == (64, 64e-6, 64e-6, 64e-6)
    assert (long.attended_tokens, long.seconds, long.low, long.samples) == (128, 128e-6, None, FEW_STEPS)
    (profile,) = status.profiles
    assert (profile.phase, profile.steps, profile.kernels) == ("decode", INTERVAL_STEPS, 90)
    assert profile.kernel_seconds == pytest.approx(64e-6)
    assert measured.made.missing is None
    assert not measured.process.open
    assert not measured.profiler.used


@pytest.mark.parametrize("request_", ["capture", "profile"])
def test_a_process_that_fails_costs_the_kernel_times_and_says_why(measured: Measured, request_: str) -> None:
    measured.process.fails[request_] = "the process that profiles ended with code 1"
    list(measured.made.learn())
    assert measured.made.missing == "kernel times are not known: the process that profiles ended with code 1"
    (status,) = measured.warmup.sent
    assert (len(status.device_times), status.kernel_times) == (4, [])
    assert not measured.process.open


def test_a_step_that_cannot_be_queued_costs_the_numbers_and_says_why_unless_the_device_is_lost(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Mock(side_effect=torch.OutOfMemoryError("no room"))
    monkeypatch.setattr(profiler, "queued_time", failing)
    list(measured.made.learn())
    assert measured.made.missing == "device times are not all known: OutOfMemoryError: no room"
    assert not measured.process.open
    failing.side_effect = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    measured.process.open = True
    with pytest.raises(torch.AcceleratorError):
        list(measured.made.learn())
    assert not measured.process.open


@pytest.mark.parametrize(
    ("code", "said"), [("raise SystemExit(3)", "ended with code 3"), ("input(); input()", "does not answer")]
)
def test_a_process_that_ended_or_hangs_says_so_and_is_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    monkeypatch.setattr(kernel_process, "owned", lambda _: [sys.executable, "-c", code])
    monkeypatch.setattr(kernel_process, "MOST_CAPTURE_SECONDS", 0.0)
    process = KernelProcess(settings(tmp_path, modes=["eager"]))
    if "Exit" in code:
        process._process.wait()
    process.capture("eager")
    for wait in (lambda: list(process.captured("eager")), lambda: process.profiled("eager")):
        with pytest.raises(RuntimeError, match=said):
            wait()
    process.close()


def test_a_profiler_that_fails_costs_its_price_unless_the_device_is_lost(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise error

    error = RuntimeError("CUPTI_ERROR_NOT_INITIALIZED")
    monkeypatch.setattr(profiler, "step_dispatch", fail)
    measured.made.attach()
    assert "what that costs is not known: RuntimeError: CUPTI_ERROR" in (measured.made.profiler_note or "")
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(torch.AcceleratorError):
        measured.made.attach()


@pytest.mark.parametrize("slowdown", [1.0, 1.2])
def test_every_ready_mode_is_measured_before_the_profilers_first_session_and_after_it(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, slowdown: float
) -> None:
    taken: list[bool] = []

    def dispatch(step: Any, buffers: Buffers, phase: str) -> float:
        assert (buffers.bucket, phase) == (1, "decode")
        taken.append(measured.profiler.used)
        return (1 + 0.001 * (len(taken) % 3)) * (slowdown if measured.profiler.used else 1.0)

    monkeypatch.setattr(profiler, "step_dispatch", dispatch)
    measured.made.attach()
    assert taken == [False] * profiler.ROUNDS + [True] * profiler.ROUNDS
    (status,) = measured.warmup.sent
    cost = status.profiler_cost
    assert cost.ratio == pytest.approx(slowdown, abs=0.003)
    assert cost.low < cost.ratio < cost.high
    note = measured.made.profiler_note
    assert note is not None
    assert f"eager {cost.ratio:.2f} ({cost.low:.2f} to {cost.high:.2f})" in note
    assert "sources.dispatch: attached" in note


@pytest.mark.slow
def test_another_process_profiles_every_shape_of_a_mode_and_fails_one_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    process = KernelProcess(settings(tmp_path, modes=["eager", "no_grad"], batch_sizes=[1, 2]))
    try:
        for name in ("eager", "absent", "no_grad"):
            process.capture(name)
        for name in ("no_grad", "eager"):
            list(process.captured(name))
        with pytest.raises(RuntimeError, match="absent: KeyError: 'absent'"):
            list(process.captured("absent"))
        decode, prefill, *others = process.profiled("eager")
        without_tape = process.profiled("no_grad")
        process._process.kill()
        with pytest.raises(RuntimeError, match="ended with code -9"):
            process.profiled("eager")
    finally:
        process.close()
    assert len(without_tape) == 4
    assert without_tape[0].steps[0].operators < decode.steps[0].operators
    assert {(decode.batch, prefill.batch), *((one.batch,) for one in others)} == {(2, 2), (1,)}
    counts = Counter(step.shape for step in decode.steps)
    assert counts == {(1, 64): INTERVAL_STEPS, **{(1, reach): FEW_STEPS for reach in (128, 256, 512)}}
    assert decode.steps[0].shape == (1, 64)
    assert {step.shape.row_tokens for step in prefill.steps if step.shape} == {16, 32, 64}
    assert all(step.operators > 50 for step in decode.steps)
