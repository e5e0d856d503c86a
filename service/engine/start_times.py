"""Where the seconds of this process's start went, by phase; torch is asked, but not imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from time import CLOCK_BOOTTIME, clock_gettime_ns, perf_counter_ns
from typing import get_args

from service.start_records import EXPORT, StartPhase, StartTimes

EVENTS: dict[str, StartPhase] = {
    "entire_frame_compile": "dynamo",
    EXPORT: "dynamo",
    "backend_compile": "aot_autograd",
    "create_aot_dispatcher_function": "aot_autograd",
    "compile_fx.<locals>.fw_compiler_base": "inductor",
    "inductor_compile": "inductor",
    "AOTAutogradCache.inductor_load": "inductor",
    "compile_file": "compiler",
    "async_compile.wait": "compiler",
}
"""The phases of those events of torch (`dynamo_timed`) that CompilationMetrics are summed from, and of parts
of them. One that a version of torch does not have leaves its time to the event around it."""


class StartClock:
    """Each instant since the process began counts in one phase, the innermost, so that they sum to the whole.

    Phases are those of the main thread: what other threads and processes do beside it is seen as its wait.
    """

    def __init__(self) -> None:
        age_ns = clock_gettime_ns(CLOCK_BOOTTIME) - _process_began_ns()
        self._since_ns = perf_counter_ns()
        self._began_ns = self._since_ns - age_ns
        self._spent_ns: dict[StartPhase, int] = dict.fromkeys(get_args(StartPhase), 0)
        self._spent_ns["import"] = age_ns
        self._phases: list[StartPhase] = ["rest"]
        self.compiler_runs = 0
        self.beside_seconds = 0.0

    @contextmanager
    def phase(self, phase: StartPhase) -> Iterator[None]:
        self.enter(phase)
        try:
            yield
        finally:
            self.leave()

    def enter(self, phase: StartPhase) -> None:
        self._count()
        self._phases.append(phase)

    def leave(self) -> None:
        self._count()
        self._phases.pop()

    def _count(self) -> None:
        now_ns = perf_counter_ns()
        self._spent_ns[self._phases[-1]] += now_ns - self._since_ns
        self._since_ns = now_ns

    def follow_compiler(self) -> None:
        """Have torch's events switch the phase from now on. Calls after the first do nothing."""
        from torch._dynamo.utils import ChromiumEventLogger as Events

        if not hasattr(Events.log_event_start, "followed"):
            Events.log_event_start = self._followed(Events.log_event_start, begins=True)  # type: ignore[method-assign]
            Events.log_event_end = self._followed(Events.log_event_end, begins=False)  # type: ignore[method-assign]

    def _followed(self, log: Callable[..., None], begins: bool) -> Callable[..., None]:
        def logged(events: object, name: str, *more: object, **named: object) -> None:
            self.compiler_runs += begins and name == "compile_file"
            if name in EVENTS and current_thread() is main_thread():
                if begins:
                    self.enter(EVENTS[name])
                else:
                    self.leave()
            log(events, name, *more, **named)

        logged.followed = True  # type: ignore[attr-defined]
        return logged

    def times(self) -> StartTimes:
        """Until now: the process is ready."""
        self._count()
        return StartTimes(
            began_ns=self._began_ns,
            ready_ns=self._since_ns,
            seconds={phase: spent / 1e9 for phase, spent in self._spent_ns.items()},
            compiler_runs=self.compiler_runs,
            beside_seconds=self.beside_seconds,
        )


def _process_began_ns() -> int:
    """When this process began, on the clock of /proc, which is CLOCK_BOOTTIME in steps of 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


START = StartClock()
