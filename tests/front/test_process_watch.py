"""Busy is told from hanging: by what was announced, and by what the kernel's accounts show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.engine.inbox import STEP_BUSY_SECONDS, STEP_LIMIT_SECONDS
from service.front import child_process, study_runner
from service.front.child_process import (
    CHECK_SECONDS,
    STARTING,
    TICKS_PER_SECOND,
    Activity,
    ProcessWatch,
    activity,
)
from service.records import SERVING, Doing
from tests.support.processes import descendants
from tests.support.serving import until

STILL = Activity(cpu_ticks=7, at_work=False, stopped=False)
STOPPED = Activity(cpu_ticks=7, at_work=False, stopped=True)
NOTICED_SECONDS = 15.0

COMPILING = Doing(what="warming up compiled", limit_seconds=1800.0)
SERVES = Doing(what=SERVING, limit_seconds=10.0)
STEPS = Doing(what=SERVING, limit_seconds=STEP_LIMIT_SECONDS, busy_limit_seconds=STEP_BUSY_SECONDS)
DOWNLOADING = Doing(what="loading the model", limit_seconds=3600.0, may_wait=True)


def watch_of(look: Callable[[int], Activity | None], doing: Doing | None = None) -> ProcessWatch:
    made = ProcessWatch(1, look)
    if doing is not None:
        made.heard(doing)
    return made


def looks_until_hung(watch: ProcessWatch) -> tuple[float, str]:
    """After how many seconds of looks it counts as hung, and why; fails where it never does."""
    for number in range(1, 5000):
        if reason := watch.hung(CHECK_SECONDS):
            return number * CHECK_SECONDS, reason
    raise AssertionError("never hung")


@pytest.mark.parametrize("doing", [None, COMPILING, SERVES], ids=["before hello", "in warm-up", "idle"])
def test_an_engine_that_stands_still_is_noticed_in_time_whatever_it_announced(doing: Doing | None) -> None:
    seconds, reason = looks_until_hung(watch_of(lambda _: STILL, doing))
    assert seconds <= NOTICED_SECONDS
    assert (doing or STARTING).what in reason


def test_an_engine_that_computes_has_the_time_that_it_announced() -> None:
    ticks = iter(range(10_000))
    watch = watch_of(lambda _: Activity(next(ticks), at_work=False, stopped=False), COMPILING)
    seconds, reason = looks_until_hung(watch)
    assert seconds == COMPILING.limit_seconds + CHECK_SECONDS
    assert "warming up compiled for 1801 s, over the 1800 s" in reason


def test_a_step_that_pages_its_weights_in_is_given_more_time_than_one_that_stands_still() -> None:
    serves = Doing(what=SERVING, limit_seconds=STEP_LIMIT_SECONDS)
    paging = watch_of(lambda _: Activity(7, at_work=True, stopped=False), serves)
    assert not any(paging.hung(CHECK_SECONDS) for _ in range(45))
    for motionless in (STILL, STOPPED):
        assert looks_until_hung(watch_of(lambda _, now=motionless: now, serves))[0] <= NOTICED_SECONDS


def computing(share: float, threads: int = 1, faults: float = 0.0) -> Callable[[int], Activity]:
    """Looks at a process whose `threads` each use `share` of a core, with `faults` from a disk a second."""
    looks = iter(range(10_000))

    def look(_: int) -> Activity:
        seconds = next(looks) * CHECK_SECONDS
        each = round(seconds * share * TICKS_PER_SECOND)
        own = dict.fromkeys(range(threads), each)
        return Activity(each * threads, True, False, own, round(seconds * faults))

    return look


@pytest.mark.parametrize(("share", "threads"), [(1.0, 1), (0.4, 1), (1.0, 64)])
def test_an_endless_loop_within_a_step_is_noticed_in_time_also_with_less_than_a_core(
    share: float, threads: int
) -> None:
    seconds, reason = looks_until_hung(watch_of(computing(share, threads), STEPS))
    assert seconds <= NOTICED_SECONDS
    assert "of CPU time within one step while serving, over the 4 s that any may take" in reason


@pytest.mark.parametrize(
    "slow",
    [computing(0.05), computing(0.9, faults=2000.0)],
    ids=["a machine that is shared by many", "weights that were swapped out"],
)
def test_a_step_on_a_slow_machine_has_its_whole_time(slow: Callable[[int], Activity]) -> None:
    seconds, reason = looks_until_hung(watch_of(slow, STEPS))
    assert seconds == STEP_LIMIT_SECONDS + CHECK_SECONDS
    assert "over the 60 s" in reason


def test_cpu_time_used_while_the_front_itself_was_suspended_is_not_held_against_the_engine() -> None:
    ticks = iter([0, 100 * TICKS_PER_SECOND])
    watch = watch_of(lambda _: Activity(0, True, False, {1: next(ticks)}), STEPS)
    passed = (CHECK_SECONDS, CHECK_SECONDS, CHECK_SECONDS, 3600.0)
    assert [watch.hung(seconds) for seconds in passed] == [None] * 4


@pytest.mark.parametrize(("state", "at_work"), [(state, state in "RDt") for state in "RDtST"])
def test_waiting_for_a_disk_or_held_by_a_debugger_is_no_standing_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, at_work: bool
) -> None:
    for task in (f"self/task/{threading.get_native_id()}", "1/task/1"):
        (tmp_path / task).mkdir(parents=True)
        (tmp_path / task / "children").touch()
    for stat in (tmp_path / "1/stat", tmp_path / "1/task/1/stat"):
        stat.write_text(f"1 (python) {state} {' '.join(['0'] * 40)}")
    monkeypatch.setattr(child_process, "PROC", tmp_path)
    expected = Activity(cpu_ticks=0, at_work=at_work, stopped=state == "T", thread_ticks={1: 0})
    assert activity(1) == expected


def test_threads_and_faults_are_read_from_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in (f"self/task/{threading.get_native_id()}", "1/task/1", "1/task/2"):
        (tmp_path / task).mkdir(parents=True)
        (tmp_path / task / "children").touch()
    places = "R 1 1 1 0 -1 0 10 20 30 40 500 60 7000 8000 20 0"
    (tmp_path / "1/stat").write_text(f"1 (a ) b) {places}")
    (tmp_path / "1/task/1/stat").write_text(f"1 (python) {places}")
    (tmp_path / "1/task/2/stat").write_text(f"2 (worker) {places.replace('500 60', '5 6')}")
    monkeypatch.setattr(child_process, "PROC", tmp_path)
    assert activity(1) == Activity(15_560, True, False, {1: 560, 2: 11}, 30)


@pytest.mark.parametrize(
    "doing", [DOWNLOADING, study_runner.STARTING], ids=["the engine", "the anatomy process"]
)
def test_one_that_may_wait_for_a_download_is_still_noticed_where_it_is_stopped(doing: Doing) -> None:
    waits = watch_of(lambda _: STILL, doing)
    assert not any(waits.hung(CHECK_SECONDS) for _ in range(600))
    assert looks_until_hung(watch_of(lambda _: STOPPED, doing))[0] <= NOTICED_SECONDS


def test_any_message_is_a_sign_of_life() -> None:
    watch = watch_of(lambda _: STILL, SERVES)
    for _ in range(100):
        assert not any(watch.hung(CHECK_SECONDS) for _ in range(5))
        watch.heard()
    assert watch.doing == SERVES


def test_one_that_is_stopped_on_purpose_is_left_alone_until_it_goes_on() -> None:
    watch = watch_of(lambda _: STOPPED, SERVES)
    watch.watching = False
    assert not any(watch.hung(CHECK_SECONDS) for _ in range(600))
    watch.watching = True
    assert looks_until_hung(watch)[0] <= NOTICED_SECONDS


def test_where_the_kernel_tells_nothing_the_limit_holds() -> None:
    seconds, _ = looks_until_hung(watch_of(lambda _: None, SERVES))
    assert seconds == SERVES.limit_seconds + CHECK_SECONDS


@contextmanager
def running(code: str) -> Iterator[int]:
    """A Python process that runs `code`; gone at the end with its children."""
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ticks_of(pid: int) -> int:
    now = activity(pid)
    return now.cpu_ticks if now else 0


def test_a_busy_process_uses_time_and_a_stopped_one_is_seen_as_such() -> None:
    with running("while True: pass") as pid:
        before = until(lambda: ticks_of(pid), "its first time")
        until(lambda: ticks_of(pid) > before, "more time")
        now = activity(pid)
        assert now is not None
        assert max(now.thread_ticks.values()) >= before
        os.kill(pid, signal.SIGSTOP)
        stopped = until(lambda: (now := activity(pid)) and now.stopped and now, "the stop")
        assert not stopped.at_work
        assert activity(pid) == stopped


def test_what_a_child_does_counts_as_a_compiler_does_for_which_the_engine_waits() -> None:
    with running("import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])") as pid:
        (child,) = until(lambda: descendants(pid), "the child")
        own = ticks_of(child)
        until(lambda: ticks_of(child) > own + 20, "time of the child")
        now = activity(pid)
        assert now is not None
        assert now.at_work
        assert now.cpu_ticks > 20
    assert activity(pid) is None
