"""A second process that profiles the steps of a CUDA engine, so that the engine itself is not slowed down.

The profiler's library, CUPTI, stays attached to a process from its first session on and slows every launch
that follows. This process loads the same model and the same compiled code, and reports as JSON lines.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Literal, cast

import msgspec
import torch

from service.engine.parts import build_parts
from service.engine.warmup import ConfiguredMode
from service.parent_death import owned
from service.records import EngineSettings, Phase
from service.step.buffers import StepInputs
from service.step.callables import AnyStep
from service.step.device import reason
from service.step.meters import step_shape
from service.step.process_state import prepare_process
from service.step.profiling import FEW_STEPS, INTERVAL_STEPS, profile_steps
from service.step.trace import ProfiledStep

POLL_SECONDS = 0.02
CHUNK_BYTES = 1 << 20

MOST_SECONDS = 60.0
"""Profiling one mode keeps requests waiting for seconds; after so many the process hangs."""

MOST_CAPTURE_SECONDS = 600.0
"""The same of capturing a mode, of which all code is in the compile cache; requests are served meanwhile."""

ROOM = 2.0
"""So many times what the engine has reserved must be free: for the copy, and for what both still capture."""


class Profiled(msgspec.Struct, frozen=True):
    """The steps of one callable that were profiled: each shape several times, the usual one first."""

    phase: Phase
    batch: int
    steps: list[ProfiledStep]


Request = Literal["capture", "profile"]


class Report(msgspec.Struct, frozen=True):
    """The answer to one request about a mode: what was `profiled`, or why the request `failed`."""

    request: Request
    mode: str
    profiled: list[Profiled] = []
    failed: str | None = None


class KernelProcess:
    """The process, for an engine of these `settings`. It ends with the engine, or at `close`."""

    def __init__(self, settings: EngineSettings) -> None:
        chosen = msgspec.json.encode(msgspec.structs.replace(settings, discard_compiled=False)).decode()
        command = [sys.executable, "-m", "service.engine.kernel_process", chosen]
        self._process = subprocess.Popen(owned(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._reports = self._process.stdin, self._process.stdout
        os.set_blocking(self._reports.fileno(), False)
        self._rest = b""
        self._answers: dict[tuple[Request, str], Report] = {}
        self._ended: str | None = None

    def capture(self, mode: str) -> None:
        """Have the steps of `mode` captured there, whose code is in the compile cache."""
        self._send("capture", mode)

    def captured(self, mode: str) -> Iterator[None]:
        """Wait until the steps of `mode` are captured, yielding meanwhile. Raises RuntimeError with the
        reason where they cannot be.
        """
        until = monotonic() + MOST_CAPTURE_SECONDS
        while (report := self._answer("capture", mode)) is None:
            self._pause(until)
            yield
        _raise_failure(report)

    def profiled(self, mode: str) -> list[Profiled]:
        """Have the steps of `mode`, which is captured, profiled, and wait for that: the device is to be free.

        Raises RuntimeError with the reason where it cannot be done.
        """
        self._send("profile", mode)
        until = monotonic() + MOST_SECONDS
        while (report := self._answer("profile", mode)) is None:
            self._pause(until)
        _raise_failure(report)
        return report.profiled

    def close(self) -> None:
        """End it: its copy of the model leaves the device."""
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):  # of a request that it did not live to read
            self._requests.close()
        self._reports.close()

    def _send(self, request: Request, mode: str) -> None:
        self._answers.pop((request, mode), None)
        with suppress(BrokenPipeError):  # it has ended, which the next read says
            self._requests.write(f"{request} {mode}\n".encode())
            self._requests.flush()

    def _answer(self, request: Request, mode: str) -> Report | None:
        """The answer to that request; None: there is none yet."""
        self._read()
        if self._ended is not None:
            return self._answers.get((request, mode), Report(request, mode, failed=self._ended))
        return self._answers.get((request, mode))

    def _pause(self, until: float) -> None:
        """Beyond `until` it counts as ended, for all requests."""
        if monotonic() > until:
            self._ended = "the process that profiles does not answer"
        sleep(POLL_SECONDS)

    def _read(self) -> None:
        try:
            found = os.read(self._reports.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return
        if not found:
            self._ended = f"the process that profiles ended with code {self._process.wait()}"
        *lines, self._rest = (self._rest + found).split(b"\n")
        for line in lines:
            report = msgspec.json.decode(line, type=Report)
            self._answers[report.request, report.mode] = report


def _raise_failure(report: Report) -> None:
    if report.failed is not None:
        raise RuntimeError(report.failed)


def kernel_process(settings: EngineSettings) -> KernelProcess:
    """Start it. Raises RuntimeError where the device has no room for another copy of the engine's memory."""
    needed = ROOM * torch.cuda.memory_reserved()
    free, _ = torch.cuda.mem_get_info()
    if free < needed:
        raise RuntimeError(
            f"profiling in a process of its own needs {needed / 2**30:.1f} GiB, and the device has "
            f'{free / 2**30:.1f} GiB free: send a request with "profile": true instead'
        )
    return KernelProcess(settings)


def main(arguments: list[str]) -> int:
    """Capture or profile the mode of each line that is read, and answer it."""
    settings = msgspec.json.decode(arguments[0], type=EngineSettings)
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library or a compiler prints is no report

    prepare_process(settings.cache_folder, settings.model)
    parts = build_parts(settings, lambda _: None)
    with torch.no_grad():
        for line in sys.stdin:
            request, _, mode = line.strip().partition(" ")
            found: list[Profiled] = []
            failed = None
            try:
                configured = parts.warmup.modes[mode]
                if request == "profile":
                    found = _profile_mode(configured, parts.workload.inputs)
                else:
                    for _ in parts.warmup.serving(configured):
                        pass
            except Exception as error:  # noqa: BLE001 - it fails this mode alone
                failed = f"{mode}: {reason(error)}"
            answer = msgspec.json.encode(Report(cast("Request", request), mode, found, failed))
            print(answer.decode(), file=reports, flush=True)
    return 0


def _profile_mode(configured: ConfiguredMode, inputs: Mapping[int, StepInputs]) -> list[Profiled]:
    """Every callable of a captured mode, in every shape; none of one that is not captured."""
    return [
        Profiled(phase, bucket, _profile(step, inputs[bucket], phase))
        for (phase, bucket), step in configured.steps.items()
    ]


def _profile(step: AnyStep, inputs: StepInputs, phase: Phase) -> list[ProfiledStep]:
    """All shapes in one session, the usual one often enough for an interval."""
    arguments = inputs.measured(phase)
    others = [one for one in inputs.shapes(phase) if step_shape(one) != step_shape(arguments)]
    return profile_steps(step, [(arguments, INTERVAL_STEPS), *((one, FEW_STEPS) for one in others)])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
