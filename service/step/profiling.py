"""Sessions of torch's profiler: what runs in them beside the steps, so that their kernels can be found.

On CUDA every session contains work on the device that is no step's, because the first kernels of a session
are dropped (pytorch issue 192021), a first session without device work left later ones without kernels, and a
plain launch separates two steps in a trace whose correlation ids are wrong: see `trace.match_work`.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_leaves

from service.records import Phase
from service.step.buffers import Buffers, StepArguments
from service.step.callables import AnyStep, Step
from service.step.compile_cache import warn
from service.step.meters import Meter, ProfilingMeter, step_name
from service.step.trace import (
    LEAD_MARK,
    STEP_MARK,
    KernelCounts,
    ProfiledStep,
    operator_table,
    read_steps,
    typical_step,
    without_lead,
)

LEAD_SECONDS = 0.005
"""Of discarded work before the first mark of a session."""

_attached = False


def profiler_attached() -> bool:
    """Whether this process has had a session of a CUDA device, whose library (CUPTI) stays attached to it."""
    return _attached


class Separator:
    """A plain launch of a small kernel, outside of every mark; does nothing on a CPU. With `copies` it is a
    copy on the device, which a sum over kernels leaves out.
    """

    def __init__(self, device: torch.device, copies: bool = False) -> None:
        self._value = torch.zeros(1, device=device) if device.type == "cuda" else None
        self._copied = torch.ones(1, device=device) if copies else None

    def launch(self) -> None:
        if self._value is None:
            return
        if self._copied is None:
            self._value.add_(1)
        else:
            self._value.copy_(self._copied)

    def lead(self) -> None:
        """Launch it for LEAD_SECONDS: the begin of a session, before any mark."""
        if self._value is None:
            return
        with record_function(LEAD_MARK):
            began = perf_counter()  # behind the mark: a session's first takes milliseconds
            while perf_counter() - began < LEAD_SECONDS:
                self.launch()
                self.wait()

    def wait(self) -> None:
        if self._value is not None:
            torch.cuda.synchronize()


def new_session(device: torch.device, memory: bool = False) -> profile:
    """A session that has not begun, of the host and, on CUDA, the device; with `memory` also of allocations.
    Without `acc_events`, with which stopping it parses every event in Python, for seconds.
    """
    global _attached
    _attached = _attached or device.type == "cuda"
    # torch before 2.13 warns so of every session, also of one without cycles (pytorch issue 180348).
    warnings.filterwarnings("ignore", "Warning: Profiler clears events at the end of each cycle", UserWarning)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    return profile(activities=activities, profile_memory=memory)


STEPS_PER_TRACE = 16
"""Steps of a request that are recorded; later ones run unprofiled, so that viewers can open the trace."""

PROFILED_STEPS = 5
"""Alike steps in one session: enough that most of them agree on the number of kernels where some are lost."""

INTERVAL_STEPS = 8
"""Alike steps in a session whose median is to have an interval: two more than it needs, as some are lost."""

FEW_STEPS = 2
"""Alike steps of which no interval is wanted: where one loses kernels, the other shows it."""

TRACES_KEPT = 20
TRACE = ".trace.json.gz"
SUFFIXES = (TRACE, ".json", ".part")

UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
"""What reading a trace raises that was written in part or not at all."""

UNSAFE = re.compile(r"[^\w.-]")
"""Characters of an id, which a client may choose, that are replaced in a file's name."""


class Profiler:
    """Profiles one job at a time and keeps the newest traces in `folder`."""

    def __init__(self, device: torch.device, folder: Path) -> None:
        self._device = device
        self._separator = Separator(device)
        self._folder = folder
        self._counts: dict[tuple[str, int], KernelCounts] = defaultdict(dict)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def warm(self) -> None:
        """Run the profiler once: its first use takes seconds. A disk that refuses costs only this."""
        try:
            warm_profiler(self._device)
        except UNREADABLE as error:
            warn(f"the profiler's first session was not read: {error}")

    def run(
        self, identity: str, about: dict[str, Any], meter: Meter, action: Callable[[Meter], None]
    ) -> list[ProfiledStep]:
        """Call `action` with a profiling meter; returns its recorded steps and writes the trace.

        `about`, with at least mode and batch_size, is kept beside the trace, with the operators' self times
        and the reasons why kernels are unknown, counted. What `action` raises passes through, without a
        trace. Where the disk does not take the trace, no steps are returned: they come from that file.
        """
        identity = UNSAFE.sub("_", identity)
        session = new_session(self._device)
        self._separator.wait()  # what still runs would be work of which the trace has no call
        session.start()
        profiling = ProfilingMeter(meter, session.stop, STEPS_PER_TRACE)
        try:
            self._separator.lead()
            action(profiling)
            self._separator.wait()
        finally:
            profiling.end()
        try:
            steps = self._write(session, identity, about)
            self._delete_old()
        except UNREADABLE as error:
            # Kineto itself reports no error: its file is then missing, or ends too early.
            warn(f"the trace {identity} was not kept in {self._folder}: {error}")
            with suppress(OSError):
                for suffix in SUFFIXES:
                    (self._folder / f"{identity}{suffix}").unlink(missing_ok=True)
            return []
        return steps

    def _write(self, session: profile, identity: str, about: dict[str, Any]) -> list[ProfiledStep]:
        """Write the trace, then its notes, of which no reader sees a part; returns the recorded steps."""
        trace = self._folder / f"{identity}{TRACE}"
        session.export_chrome_trace(str(trace))
        with gzip.open(trace, "rt") as file:
            events = json.load(file)["traceEvents"]
        counts = self._counts[about["mode"], about["batch_size"]]
        steps = read_steps(events, self._device.type == "cuda", counts)
        notes = {
            **about,
            "id": identity,
            "steps": len(steps),
            "kernels_unknown": Counter(step.unknown for step in steps if step.unknown is not None),
            "operators": operator_table(without_lead(events))[:50],
        }
        note = self._folder / f"{identity}.json"
        note.with_suffix(".part").write_text(json.dumps(notes))
        note.with_suffix(".part").replace(note)
        return steps

    def _delete_old(self) -> None:
        """Keep the newest traces with their notes, and remove the others, also notes without a trace."""
        traces = sorted(self._folder.glob(f"*{TRACE}"), key=os.path.getmtime, reverse=True)
        kept = {trace.name.removesuffix(TRACE) for trace in traces[:TRACES_KEPT]}
        for path in self._folder.iterdir():
            suffix = next((end for end in SUFFIXES if path.name.endswith(end)), None)
            if suffix is not None and path.name.removesuffix(suffix) not in kept:
                path.unlink(missing_ok=True)


def profile_step(step: Step, buffers: Buffers, phase: Phase = "decode") -> ProfiledStep:
    """Profile a warm step a few times, without keeping a trace; returns the one of median kernel time."""
    return typical_step(profile_steps(step, [(buffers.arguments(phase), PROFILED_STEPS)]))


def profile_steps(step: AnyStep, plan: Sequence[tuple[StepArguments, int]]) -> list[ProfiledStep]:
    """Profile a warm step in one session, each call alone on the device: with each of the arguments in `plan`
    as often as it says.
    """
    device = next(leaf.device for leaf in tree_leaves(plan[0][0]) if isinstance(leaf, torch.Tensor))
    calls: list[MarkedCall] = []
    for arguments, count in plan:
        step(*arguments)
        calls += [(step_name(arguments), partial(step, *arguments))] * count
    events = chrome_events(record_session(device, calls, Separator(device)))
    return read_steps(events, device.type == "cuda")


def warm_profiler(device: torch.device) -> None:
    """Run a process's first session, with work on `device`, so that libraries are loaded and attached."""
    record_steps(device, lambda: torch.zeros(1, device=device).add_(1), steps=1)


def attach_profiler(device: torch.device) -> None:
    """On CUDA run this process's first session, unless it has had one.

    Call it before any session and behind all that is to be timed without the profiler: its library stays
    attached, and launches take longer from then on.
    """
    if device.type == "cuda" and not profiler_attached():
        warm_profiler(device)


def record_steps(device: torch.device, call: Callable[[], object], steps: int) -> list[dict[str, Any]]:
    """The events of a session of `steps` marked calls of `call`, each fenced and followed by a separator."""
    return chrome_events(record_session(device, [(STEP_MARK, call)] * steps, Separator(device)))


MarkedCall = tuple[str, Callable[[], object]]
"""The name of a step's mark, and the call in it."""


def record_session(device: torch.device, calls: Iterable[MarkedCall], separator: Separator) -> profile:
    """That session itself, which has ended, for who asks the profiler's own tables as well."""
    separator.launch()  # loads its kernel
    separator.wait()
    session = new_session(device)
    with session:
        separator.lead()
        for name, call in calls:
            with record_function(name):
                call()
            separator.launch()
            separator.wait()
    return session


def chrome_events(session: profile) -> list[dict[str, Any]]:
    """The session's events, by way of a file: Kineto exports them in no other form."""
    with tempfile.TemporaryDirectory(prefix="launchbound-") as folder:
        path = Path(folder) / "trace.json"
        session.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events
