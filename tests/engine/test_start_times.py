"""Where a start's seconds go: each instant is in one phase, and torch's own events name the compiler's."""

from __future__ import annotations

import time
from threading import Thread, current_thread, main_thread

import pytest
import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import (
    ChromiumEventLogger,
    clear_compilation_metrics,
    dynamo_timed,
    get_compilation_metrics,
)

from service.engine import start_times
from service.engine.start_times import START, StartClock
from service.start_records import StartTimes


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = start_times.perf_counter_ns()
        monkeypatch.setattr(start_times, "perf_counter_ns", lambda: self.now_ns)

    def passes(self, seconds: int) -> None:
        self.now_ns += seconds * 1_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def since(before: StartTimes, after: StartTimes) -> dict[str, float]:
    spent = {phase: after.seconds[phase] - before.seconds[phase] for phase in after.seconds}
    return {phase: round(seconds, 6) for phase, seconds in spent.items() if seconds}


def test_an_inner_phase_is_not_counted_in_the_outer_one_and_all_sum_to_the_whole(clock: Clock) -> None:
    own = StartClock()
    before = own.times()
    clock.passes(1)
    with own.phase("calls"):
        clock.passes(2)
        with own.phase("dynamo"):
            clock.passes(3)
        clock.passes(4)
    after = own.times()
    assert since(before, after) == {"rest": 1, "calls": 6, "dynamo": 3}
    whole = (after.ready_ns - after.began_ns) / 1e9
    assert sum(after.seconds.values()) == pytest.approx(whole, abs=1e-6)


def test_what_happened_before_the_clock_is_import(clock: Clock) -> None:
    times = StartClock().times()
    assert times.seconds["import"] == pytest.approx((times.ready_ns - times.began_ns) / 1e9)
    assert times.seconds["import"] > 0


def test_events_of_torch_switch_the_phase_and_unknown_ones_do_not(clock: Clock) -> None:
    START.follow_compiler()
    before = START.times()
    with dynamo_timed("_compile.compile_inner", phase_name="entire_frame_compile"):
        clock.passes(1)
        with dynamo_timed("OutputGraph.call_user_compiler", phase_name="backend_compile"):
            clock.passes(2)
            with dynamo_timed("compile_fx_inner", phase_name="inductor_compile"):
                clock.passes(3)
                with dynamo_timed("Scheduler.codegen"):
                    clock.passes(4)
                with dynamo_timed("compile_file"):
                    clock.passes(5)
    after = START.times()
    assert since(before, after) == {"dynamo": 1, "aot_autograd": 2, "inductor": 7, "compiler": 5}
    assert after.compiler_runs == before.compiler_runs + 1


def test_a_compiler_beside_the_main_thread_is_counted_but_takes_none_of_its_time(clock: Clock) -> None:
    START.follow_compiler()
    before = START.times()

    def beside() -> None:
        with dynamo_timed("compile_file"):
            clock.passes(5)

    with START.phase("parity"):
        thread = Thread(target=beside)
        thread.start()
        thread.join()
    after = START.times()
    assert since(before, after) == {"parity": 5}
    assert after.compiler_runs == before.compiler_runs + 1


@pytest.mark.compiles
@pytest.mark.usefixtures("restored_globals")
def test_the_phases_of_a_compilation_sum_to_torchs_own_metrics(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    START.follow_compiler()
    torch.compile(lambda x: x + 1)(torch.zeros(1))  # imports
    begin = ChromiumEventLogger.log_event_start

    def begin_and_wait(*event: object, **named: object) -> None:
        begin(*event, **named)  # type: ignore[arg-type]
        if current_thread() is main_thread():
            clock.passes(1)

    monkeypatch.setattr(ChromiumEventLogger, "log_event_start", begin_and_wait)
    monkeypatch.setattr(time, "time_ns", lambda: clock.now_ns)
    clear_compilation_metrics()
    before = START.times()
    with dynamo_config.patch(error_on_recompile=False):
        torch.compile(lambda x: (x @ x).sin().sum())(torch.ones(5, 5))
    found = since(before, START.times())
    (metrics,) = get_compilation_metrics()
    assert metrics.duration_us is not None
    assert metrics.aot_autograd_cumulative_compile_time_us is not None
    compiled = sum(found[phase] for phase in ("dynamo", "aot_autograd", "inductor", "compiler"))
    assert compiled * 1e6 == metrics.duration_us
    of_dynamo = metrics.duration_us - metrics.aot_autograd_cumulative_compile_time_us
    assert found["dynamo"] * 1e6 == of_dynamo
