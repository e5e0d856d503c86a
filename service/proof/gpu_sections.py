"""The sections of `make gpu-check` that measure: `python -m service.proof.gpu_sections SECTION [DTYPE]`.

Each writes records, from which the runner makes cells and goals, so that no ending of it loses any.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from statistics import median
from typing import Any

import msgspec
import torch

from service.engine.inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.front.machine import machine
from service.measure.cases import Bench, Case
from service.modes import default_modes, named_modes
from service.proof.gpu_goals import GRAPHS, SESSIONS, Records, own_records
from service.records import PHASES, EngineSettings, Job, ModeStatus, Outcome, ToFront
from service.step.device_time import CudaQueue, device_time
from service.step.parity import ReferenceAttention
from service.step.process_state import prepare_process
from service.step.profiling import record_steps
from service.step.trace import (
    Event,
    Matched,
    busy_microseconds,
    complete_events,
    match_work,
    step_marks,
)


def _settings(modes: Iterable[str], batches: list[int], dtype: str | None = None) -> EngineSettings:
    return EngineSettings(
        address="",
        device="cuda",
        dtype=dtype,
        modes=list(modes),
        batch_sizes=batches,
        cache_folder=os.environ["LAUNCHBOUND_CACHE_FOLDER"],
    )


# Section `device`: versions, driver, clocks, attention's backend; the first records on disk

PACKAGES = ("torch", "triton", "transformers", "safetensors", "tokenizers", "msgspec", "pytest")


def device(records: Records) -> None:
    """Write what is known in seconds; what needs no CUDA context first, lest making one fails."""
    packages = {name: _version(name) for name in PACKAGES}
    records.write(
        "versions", packages=packages, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version()
    )
    records.write("environment", **machine())
    bench = Bench(_settings(["inference_mode"], [1, 8]))
    for bucket in bench.buffers:
        records.write("attention", batch=bucket, backends=attention_backends(bench, bucket))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def attention_backends(bench: Bench, bucket: int) -> dict[str, list[str]]:
    """By phase, the backends that the attention calls of one step at `bucket` would take, by name.

    Of plain modes: a compiled step is traced with the same choice, and its fused patterns may differ.
    """
    found: dict[str, list[str]] = {}
    for phase in PHASES:
        case = bench.case("inference_mode", bucket, phase)
        with ReferenceAttention() as seen:
            case.call()
        found[phase] = sorted(seen.chosen)
    return found


# Section `profiler`: what four profiler sessions in one process say of the same replayed graph. Kernels by
# correlation id, by window and by queued replays without a profiler; dispatch before and after the sessions.

PROFILED_MODE = GRAPHS
WAYS: dict[str, Matched] = {"id": "correlation", "window": "window"}
PROFILED_BATCH = 8
PROFILED_STEPS = 5
CALLS = 200


def profiler(records: Records) -> None:
    """Profile the same step again and again, and write a record after each session."""
    settings = _settings([PROFILED_MODE], [PROFILED_BATCH])
    prepare_process(settings.cache_folder)
    bench = Bench(settings)
    case = bench.case(PROFILED_MODE, PROFILED_BATCH)
    _unprofiled(records, bench, case, "before the first session")
    for session in range(1, SESSIONS + 1):
        events = record_steps(bench.device, case.call, PROFILED_STEPS)
        records.write("session", session=session, **session_fields(events))
        trace = records.path.parent / f"profiler-session-{session}.trace.json.gz"
        trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
        if session in (1, SESSIONS):
            _unprofiled(records, bench, case, f"after session {session}")


def session_fields(events: list[Event]) -> dict[str, object]:
    """Busy and span seconds of each step's kernels, by both ways to find them; None without kernels."""
    fields: dict[str, object] = {}
    complete = complete_events(events)
    marks = step_marks(complete)
    for name, way in WAYS.items():
        kernels = [work.kernels for work in match_work(complete, marks, way)]
        fields[f"busy_seconds_by_{name}"] = [busy_microseconds(of_step) / 1e6 or None for of_step in kernels]
        fields[f"span_seconds_by_{name}"] = [_span_seconds(of_step) for of_step in kernels]
    return fields


def _span_seconds(kernels: list[Event]) -> float | None:
    """From the first kernel's begin to the last one's end, gaps included; None without kernels."""
    if not kernels:
        return None
    ends = (kernel["ts"] + kernel["dur"] for kernel in kernels)
    return float(max(ends) - min(kernel["ts"] for kernel in kernels)) / 1e6


def _unprofiled(records: Records, bench: Bench, case: Case, when: str) -> None:
    """Without a profiler session: dispatch of a call to an idle device, and the device's time per step."""
    dispatches = []
    for _ in range(CALLS):
        dispatches.append(case.call_seconds())
        bench.synchronise()
    queued = device_time(CudaQueue(), case.call, "decode", PROFILED_BATCH)
    records.write(
        "unprofiled",
        when=when,
        dispatch_seconds=median(dispatches),
        queued_seconds=queued.seconds,
        upper_bound=queued.upper_bound,
    )


# Sections `ladder` and `float32`: parity of the default modes and `cuda-graph`, in bfloat16 also launches

LADDER_BATCHES = [1, 8]
NEW_TOKENS = 64
PROMPT = "def mean(values):\n"
CAPTURED = "cuda-graph"


def ladder_modes() -> list[str]:
    """The default ones, and the captured one: with it the gains of fusion and of launches are known apart."""
    return named_modes([*default_modes(), CAPTURED])


def ladder(records: Records, dtype: str) -> None:
    """Warm the modes up in `dtype`; in bfloat16 run jobs as well. A record per job and change of a mode."""
    served = dtype == "bfloat16"
    batches = LADDER_BATCHES if served else [LADDER_BATCHES[1]]
    settings = _settings(ladder_modes(), batches, dtype)
    prepare_process(settings.cache_folder)
    work = list(jobs()) if served else []
    records.write("plan", modes=settings.modes, batches=settings.batch_sizes, jobs=len(work))
    inbox = LocalInbox(work, lambda message: watch(records, message))
    Engine(settings, inbox).run()


def jobs() -> Iterable[Job]:
    """Of every mode at every batch two: first one that is profiled, then one as it is served."""
    for profile, mode, batch in product((True, False), ladder_modes(), LADDER_BATCHES):
        name = f"{mode}-{batch}-{profile}"
        yield local_job(name, mode, [PROMPT] * batch, NEW_TOKENS, ignore_eos=True, profile=profile)


def watch(records: Records, message: ToFront) -> None:
    """A record for a mode's every change, and for every job."""
    if isinstance(message, ModeStatus) and message.state != "cold":
        records.write("mode", **msgspec.to_builtins(message))
    elif isinstance(message, Outcome):
        fields = msgspec.to_builtins(msgspec.structs.replace(message, outputs=[]))
        records.write("job", outcome=fields.pop("kind"), **fields)


# Section `tests`: tests/gpu by pytest

PYTEST = ("-q", "-c", os.devnull, "--rootdir=.", "--noconftest", "-o", "markers=gpu: needs a CUDA device",
          "-p", "no:cacheprovider")  # fmt: skip
"""Without the project's settings and fixtures: they want plugins that a GPU machine may lack."""


class RecordPerTest:
    """A pytest plugin that writes each test's outcome as soon as it is known."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def pytest_collection_finish(self, session: Any) -> None:  # noqa: ANN401 - pytest may be missing
        """How many there are, so that tests which never ran are missed."""
        self._records.write("collected", count=len(session.items))

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: ANN401 - pytest may be missing
        """A record per test, of its call, or of whatever else failed or skipped it."""
        if report.when == "call" or not report.passed:
            self._records.write(
                "test",
                name=report.nodeid,
                outcome=report.outcome,
                seconds=report.duration,
                why=None if report.passed else str(report.longrepr)[-2000:],
            )


def gpu_tests(records: Records) -> None:
    """Raises SystemExit with pytest's exit code."""
    import pytest

    raise SystemExit(int(pytest.main([*PYTEST, "tests/gpu"], plugins=[RecordPerTest(records)])))


FUNCTIONS: dict[str, Callable[..., None]] = {
    "device": device,
    "profiler": profiler,
    "ladder": ladder,
    "tests": gpu_tests,
}

if __name__ == "__main__":
    FUNCTIONS[sys.argv[1]](own_records(), *sys.argv[2:])
