"""What meters record of a call, a session's work beside its steps, and the notes of a trace."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from service.step import meters, profiling
from service.step.meters import HostMeter, Meter, Readings
from service.step.profiling import Separator
from service.step.trace import Event, ProfiledStep, is_step_mark, read_steps
from tests.step.made import arguments, replays, step, without_device_work
from tests.support.fake_cuda import FakeDevice

CPU = torch.device("cpu")

ABOUT = {"mode": "eager", "batch_size": 1, "created": 1.0}

SEPARATING = "aten::digamma_"


class VisibleSeparator(Separator):
    """Its operator runs on the CPU, under a name that no step uses; each wait is another operator."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._value = torch.ones(1)

    def launch(self) -> None:
        assert self._value is not None
        self._value.digamma_()

    def wait(self) -> None:
        torch.zeros(1).erfinv_()


def order(events: list[Event]) -> str:
    """The session in order of time: m a mark, s a separator, w a wait; equal neighbours once."""
    letters = {SEPARATING: "s", "aten::erfinv_": "w"}
    found = ""
    for one in sorted((e for e in events if e.get("ph") == "X"), key=lambda e: (e["ts"], -e["dur"])):
        letter = "m" if is_step_mark(one) else letters.get(one["name"], "")
        found += letter
    while "swsw" in found:
        found = found.replace("swsw", "sw")
    return found


def test_a_request_begins_behind_discarded_work_and_ends_with_a_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded: list[Event] = []

    def noted(events: list[Event], *_: object) -> list[ProfiledStep]:
        recorded.extend(events)
        return []

    monkeypatch.setattr(profiling, "Separator", VisibleSeparator)
    monkeypatch.setattr(profiling, "read_steps", noted)

    def action(meter: Meter) -> None:
        for _ in range(2):
            meter.run(step, arguments(1, 64), Readings())

    profiling.Profiler(CPU, tmp_path).run("a", ABOUT, HostMeter(), action)
    assert order(recorded) == "swmmw"
    notes = json.loads((tmp_path / "a.json").read_text())
    named = {row["name"] for row in notes["operators"]}
    assert "aten::zeros" in named
    assert SEPARATING not in named


def test_steps_of_several_shapes_share_a_session_and_keep_their_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions: list[torch.device] = []
    new_session = profiling.new_session
    monkeypatch.setattr(
        profiling, "new_session", lambda device: sessions.append(device) or new_session(device)
    )
    found = profiling.profile_steps(step, [(arguments(1, 64), 2), (arguments(16, 64), 1)])
    assert [one.shape for one in found] == [(1, 64), (1, 64), (16, 64)]
    assert sessions == [CPU]


def test_the_notes_of_a_trace_count_the_steps_whose_kernels_are_unknown_by_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    events = without_device_work(replays(4), until=1500.0)
    profiler = profiling.Profiler(CPU, tmp_path)
    monkeypatch.setattr(profiling, "read_steps", lambda *_: read_steps(events, cuda=True))
    steps = profiler.run("a", ABOUT, HostMeter(), lambda _: None)
    assert [found.kernels for found in steps] == [None, 90, 90, 90]
    notes = json.loads((tmp_path / "a.json").read_text())
    assert notes["kernels_unknown"] == {"1 of 1 launches have no kernel in the trace": 1}
    assert notes["steps"] == 4


def test_a_request_with_fewer_kernels_than_earlier_ones_of_its_mode_and_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    traces = iter([replays(1), replays(1, kernels=lambda _: 70), replays(1, kernels=lambda _: 70)])
    monkeypatch.setattr(
        profiling, "read_steps", lambda _, cuda, counts: read_steps(next(traces), cuda=True, counts=counts)
    )
    profiler = profiling.Profiler(CPU, tmp_path)

    def kernels(identity: str, **about: Any) -> list[int | None]:
        steps = profiler.run(identity, ABOUT | about, HostMeter(), lambda _: None)
        return [found.kernels for found in steps]

    assert kernels("a") == [90]
    assert kernels("b") == [None]
    assert kernels("c", batch_size=4) == [70]


def test_an_action_that_fails_leaves_no_trace_and_the_next_one_can_be_profiled(tmp_path: Path) -> None:
    def failing(meter: Meter) -> None:
        meter.run(step, arguments(1, 64), Readings())
        raise RuntimeError("job")

    profiler = profiling.Profiler(CPU, tmp_path)
    with pytest.raises(RuntimeError, match="job"):
        profiler.run("a", ABOUT, HostMeter(), failing)
    assert list(tmp_path.iterdir()) == []

    def longer(meter: Meter) -> None:
        for _ in range(profiling.STEPS_PER_TRACE + 3):
            meter.run(step, arguments(1, 64), Readings())

    assert len(profiler.run("b", ABOUT, HostMeter(), longer)) == profiling.STEPS_PER_TRACE


def test_only_the_newest_traces_are_kept_and_no_note_or_part_without_its_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(profiling, "TRACES_KEPT", 2)
    for name in ("lost.json", "cut.part", "older.trace.json.gz", "older.json"):
        (tmp_path / name).write_text("{}")
    os.utime(tmp_path / "older.trace.json.gz", (1.0, 1.0))
    (tmp_path / "somebody's").touch()
    profiler = profiling.Profiler(CPU, tmp_path)
    for identity in ("a", "b"):
        profiler.run(identity, ABOUT, HostMeter(), lambda _: None)
    kept = {f"{identity}{end}" for identity in ("a", "b") for end in (".trace.json.gz", ".json")}
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "somebody's"}


@pytest.mark.parametrize("trace", [None, b"", b"\x1f\x8b cut off"], ids=["none", "empty", "cut off"])
def test_a_disk_that_does_not_take_a_trace_costs_the_trace_and_not_the_answer(
    trace: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kineto reports nothing: it leaves no file, or a part of one."""

    def export(_: object, path: str) -> None:
        if trace is not None:
            Path(path).write_bytes(trace)

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export)
    answered: list[str] = []

    def action(meter: Meter) -> None:
        meter.run(step, arguments(1, 4), Readings())
        answered.append("the job ran")

    assert profiling.Profiler(CPU, tmp_path).run("a", ABOUT, HostMeter(), action) == []
    assert answered == ["the job ran"]
    assert list(tmp_path.iterdir()) == []
    assert "the trace a was not kept" in capsys.readouterr().err


def test_a_disk_that_does_not_take_the_first_session_does_not_end_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        torch.profiler.profile, "export_chrome_trace", lambda _, path: Path(path).write_text('{"cut')
    )
    profiling.Profiler(CPU, tmp_path).warm()
    assert "first session was not read" in capsys.readouterr().err


# Meters


def test_on_cuda_the_span_begins_before_the_call_so_it_holds_the_wait_for_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, zeros = FakeDevice(issue_seconds=300e-9, step_seconds=900e-9, host_ns=1_000), torch.zeros
    monkeypatch.setattr(meters, "perf_counter_ns", device.clock)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing=False: device.event())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch, "zeros", lambda *size, pin_memory=False, **rest: zeros(*size, **rest))
    readings, meter = meters.Readings(), meters.CudaMeter(4)

    def step(*_: object) -> tuple[Tensor, Tensor]:
        device.call()
        return torch.empty(1), torch.tensor([7])

    for given in (arguments(1, 64), arguments(16, 128)):
        _, tokens = meter.run(step, given, readings)
        assert meter.fetch(meter.copy(tokens), readings) == [7]
    assert readings.call == [300, 300]
    assert readings.wait == [900, 900]
    assert readings.span == [1_200, 1_200]
    assert readings.shapes == [(1, 64), (16, 128)]
    assert readings.periods(device.clock()) == [1_200, 1_200]


def test_the_profiler_is_ended_once_before_the_first_step_that_is_too_many_or_at_the_end() -> None:
    ends: list[int] = []
    readings = meters.Readings()
    meter = meters.ProfilingMeter(meters.HostMeter(), lambda: ends.append(readings.steps), most=2)
    for _ in range(4):
        meter.run(step, arguments(1, 64), readings)
    meter.end()
    assert (ends, readings.steps) == ([2], 4)
    few = meters.ProfilingMeter(meters.HostMeter(), lambda: ends.append(0), most=2)
    few.run(step, arguments(1, 64), readings)
    few.end()
    assert ends == [2, 0]
