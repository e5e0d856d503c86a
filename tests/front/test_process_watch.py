"""Busy is told from hanging: by what was announced, and by what the kernel's accounts show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from service.engine.inbox import STEP_LIMIT_SECONDS
from service.front import study_runner
from service.front.child_process import CHECK_SECONDS, STARTING, Activity, ProcessWatch, activity
from service.records import SERVING, Doing
from tests.support.processes import descendants
from tests.support.serving import until

STILL = Activity(cpu_seconds=7, at_work=False, stopped=False)
STOPPED = Activity(cpu_seconds=7, at_work=False, stopped=True)
NOTICED_SECONDS = 15.0

COMPILING = Doing(what="warming up compiled", limit_seconds=1800.0)
SERVES = Doing(what=SERVING, limit_seconds=10.0)
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


@pytest.mark.parametrize(
    "doing", [DOWNLOADING, study_runner.STARTING], ids=["the engine", "the anatomy process"]
)
def test_one_that_may_wait_for_a_download_is_still_noticed_where_it_is_stopped(doing: Doing) -> None:
    waits = watch_of(lambda _: STILL, doing)
    assert not any(waits.hung(CHECK_SECONDS) for _ in range(600))
    assert looks_until_hung(watch_of(lambda _: STOPPED, doing))[0] <= NOTICED_SECONDS


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


def seconds_of(pid: int) -> float:
    now = activity(pid)
    return now.cpu_seconds if now else 0.0


def test_a_busy_process_uses_time_and_a_stopped_one_is_seen_as_such() -> None:
    with running("while True: pass") as pid:
        before = until(lambda: seconds_of(pid), "its first time")
        until(lambda: seconds_of(pid) > before, "more time")
        os.kill(pid, signal.SIGSTOP)
        stopped = until(lambda: (now := activity(pid)) and now.stopped and now, "the stop")
        assert not stopped.at_work
        assert activity(pid) == stopped


def test_what_a_child_does_counts_as_a_compiler_does_for_which_the_engine_waits() -> None:
    with running("import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])") as pid:
        (child,) = until(lambda: descendants(pid), "the child")
        own = seconds_of(child)
        until(lambda: seconds_of(child) > own + 0.2, "time of the child")
        now = activity(pid)
        assert now is not None
        assert now.at_work
        assert now.cpu_seconds > 0.2
    assert activity(pid) is None
