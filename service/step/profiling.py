"""Runs under torch's profiler: the traces, kept for Perfetto, and the kernel times they give."""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from service.protocol.messages import Phase
from service.step.buffers import Arguments, Buffers
from service.step.callables import Step
from service.step.meters import Meter, Readings
from service.step.trace import STEP_MARK, ProfiledStep, operator_table, read_steps
from service.step.untimed import LEAD_STEPS_UNDER_PROFILER

STEPS_PER_TRACE = 16
"""Steps of a request that are recorded; later ones run unprofiled, so that viewers can open the trace."""

TRACES_KEPT = 20
UNSAFE = re.compile(r"[^\w.-]")
"""Characters of an id, which a client may choose, that are replaced in a file's name."""


class ProfilingMeter:
    """Another meter, with a mark around each step and the profiler stopped after enough of them."""

    def __init__(self, inner: Meter, session: profile) -> None:
        self._inner = inner
        self._session = session
        self.steps = 0

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[Tensor, Tensor]:
        """Call `step` once, marked."""
        if self.steps == STEPS_PER_TRACE:
            self._session.stop()
        self.steps += 1
        with record_function(STEP_MARK):
            return self._inner.run(step, arguments, readings)

    def fetch(self, tokens: Tensor, readings: Readings) -> list[int]:
        """As the inner meter does."""
        return self._inner.fetch(tokens, readings)


class Profiler:
    """Profiles one job at a time and keeps the newest traces in `folder`."""

    def __init__(self, device: torch.device, folder: Path) -> None:
        self._cuda = device.type == "cuda"
        self._folder = folder
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def warm(self) -> None:
        """Run the profiler once, before any request: its first use takes seconds."""
        with self._session(), record_function(STEP_MARK):
            torch.zeros(1).add_(1)

    def run(
        self, identity: str, about: dict[str, Any], meter: Meter, action: Callable[[Meter], None]
    ) -> list[ProfiledStep]:
        """Call `action` with a profiling meter; returns its recorded steps and writes the trace.

        `about` is kept beside the trace, with the operators' self times. Whatever `action` raises passes
        through, and then no trace is written.
        """
        identity = UNSAFE.sub("_", identity)
        session = self._session()
        session.start()
        profiling = ProfilingMeter(meter, session)
        try:
            action(profiling)
            if self._cuda:
                torch.cuda.synchronize()
        finally:
            if profiling.steps <= STEPS_PER_TRACE:
                session.stop()
        steps = self._write(session, identity, about)
        self._delete_old()
        return steps

    def _write(self, session: profile, identity: str, about: dict[str, Any]) -> list[ProfiledStep]:
        """Write the trace, then its notes, of which no reader sees a part; returns the recorded steps."""
        trace = self._folder / f"{identity}.trace.json.gz"
        session.export_chrome_trace(str(trace))
        with gzip.open(trace, "rt") as file:
            events = json.load(file)["traceEvents"]
        steps = read_steps(events, self._cuda)
        notes = {**about, "id": identity, "steps": len(steps), "operators": operator_table(events)[:50]}
        note = self._folder / f"{identity}.json"
        note.with_suffix(".part").write_text(json.dumps(notes))
        note.with_suffix(".part").replace(note)
        return steps

    def _session(self) -> profile:
        # One cycle, no schedule: acc_events is what a single start and stop amounts to.
        return profile(activities=self._activities, acc_events=True)

    def _delete_old(self) -> None:
        notes = sorted(self._folder.glob("*.trace.json.gz"), key=os.path.getmtime, reverse=True)
        for old in notes[TRACES_KEPT:]:
            old.unlink()
            (self._folder / old.name.replace(".trace.json.gz", ".json")).unlink(missing_ok=True)


def profile_step(step: Step, buffers: Buffers, phase: Phase = "decode") -> ProfiledStep:
    """Profile one warm step without keeping a trace."""
    cuda = buffers.token.is_cuda
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    step(*buffers.arguments(phase))
    if cuda:
        torch.cuda.synchronize()
    with profile(activities=activities, acc_events=True) as session:
        with record_function(STEP_MARK):
            step(*buffers.arguments(phase))
        if cuda:
            torch.cuda.synchronize()
    return read_steps(chrome_events(session), cuda)[0]


def profile_steps(step: Step, arguments: Arguments, count: int) -> list[ProfiledStep]:
    """Profile `count` warm steps in one session on CUDA, each alone on the device; no trace is kept."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as session:
        for _ in range(LEAD_STEPS_UNDER_PROFILER):
            step(*arguments)
        torch.cuda.synchronize()
        for _ in range(count):
            with record_function(STEP_MARK):
                step(*arguments)
            torch.cuda.synchronize()
    return read_steps(chrome_events(session), cuda=True)


def chrome_events(session: profile) -> list[dict[str, Any]]:
    """The session's events, by way of a file: Kineto exports them in no other form."""
    with tempfile.TemporaryDirectory(prefix="launchbound-") as folder:
        path = Path(folder) / "trace.json"
        session.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events
