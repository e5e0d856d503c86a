"""The sections of `make gpu-check` that measure: `python -m service.proof.gpu_sections SECTION [DTYPE]`.

Each writes records, from which the runner makes cells and goals, so that no ending of it loses any.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from importlib.metadata import distributions
from itertools import product
from random import Random
from statistics import median
from time import perf_counter_ns
from typing import Any

import msgspec
import torch

from service.engine.inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.front.machine import machine
from service.measure.cases import Bench, Case, build_case
from service.measure.rounds import in_rounds, paired_median_ratio
from service.measure.step_costs import Roof, kernel_table, measure_roof
from service.modes import default_modes, named_modes
from service.proof.gpu_goals import GRAPHS, PROFILED_ROUND, SESSIONS, Records, own_records
from service.records import PHASES, EngineSettings, Job, ModeStatus, Outcome, ToFront
from service.statistics.intervals import Interval, as_json, median_interval
from service.step.device_time import CudaQueue, queued_time
from service.step.meters import Readings, new_meter, step_shape
from service.step.parity import ReferenceAttention
from service.step.process_state import prepare_process
from service.step.profiling import record_steps
from service.step.roofs import measure_null_kernel, memory_bandwidth
from service.step.trace import (
    GRAPH_LAUNCH_CALLS,
    LAUNCH_CALLS,
    RUNTIME,
    Event,
    Matched,
    busy_microseconds,
    complete_events,
    match_work,
    step_marks,
)


def _settings(
    modes: Iterable[str], batches: list[int], model: str = "tiny", dtype: str | None = None
) -> EngineSettings:
    return EngineSettings(
        address="",
        model=model,
        device="cuda",
        dtype=dtype,
        modes=list(modes),
        batch_sizes=batches,
        cache_folder=os.environ["LAUNCHBOUND_CACHE_FOLDER"],
    )


# Section `device`: versions, driver, clocks, attention's backend, copy bandwidth; the first records on disk

PACKAGES = ("torch", "triton", "transformers", "safetensors", "tokenizers", "msgspec", "pytest")
BUFFER_BYTES = tuple(2**power for power in (21, 23, 25, 27, 28))
"""2 MB to 256 MB: from within the L2 cache of most GPUs to beyond that of any."""


def device(records: Records) -> None:
    """Write what is known in seconds; what needs no CUDA context first, lest making one fails."""
    packages = {one.name: one.version for one in distributions() if one.name in PACKAGES}
    records.write("versions", python=platform.python_version(), packages=packages, cuda=torch.version.cuda)
    records.write("environment", **machine())
    properties = torch.cuda.get_device_properties(0)
    records.write(
        "gpu",
        name=properties.name,
        capability=[properties.major, properties.minor],
        processors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        cudnn=torch.backends.cudnn.version(),
    )
    for size in BUFFER_BYTES:
        found = memory_bandwidth(torch.device("cuda"), size)
        records.write("bandwidth", buffer_bytes=found.buffer_bytes, bytes_per_second=found.bytes_per_second)
    bench = Bench(_settings(["eager"], [1, 8]))
    for bucket in bench.buffers:
        records.write("attention", batch=bucket, backends=attention_backends(bench, bucket))


def attention_backends(bench: Bench, bucket: int) -> dict[str, list[str]]:
    """By phase, the backends that the attention calls of one step at `bucket` would take, by name."""
    found: dict[str, list[str]] = {}
    for phase in PHASES:
        case = build_case("inference_mode", phase, bench.model, bench.buffers[bucket], bench.precision)
        with ReferenceAttention() as seen:
            case.call()
        found[phase] = sorted(seen.chosen)
    return found


# Section `profiler`: what four profiler sessions in one process say of the same replayed graph. Kernels by
# correlation id, by window and by queued replays without a profiler; dispatch before and after the first
# session; what measuring costs; and a capture beside it all.

PROFILED_MODE = GRAPHS
WAYS: dict[str, Matched] = {"id": "correlation", "window": "window"}
PROFILED_BATCH = 8
PROFILED_STEPS = 5
CALLS = 200
METER_ROUNDS = 30
STEPS_PER_ROUND = 20


def profiler(records: Records) -> None:
    """Profile the same step again and again, and write a record after each session."""
    settings = _settings([PROFILED_MODE], [PROFILED_BATCH])
    prepare_process(settings.cache_folder)
    bench = Bench(settings)
    case = bench.case(PROFILED_MODE, PROFILED_BATCH)
    _unprofiled(records, bench, case, "before the first session")
    arms = {which: partial(_metered, case, which) for which in ("full", "off")}
    ratio = in_rounds(arms, METER_ROUNDS, "meter")
    found = paired_median_ratio(ratio["full"], ratio["off"])
    records.write("instrumentation", value=found.value, low=found.low, high=found.high, rounds=found.samples)
    for session in range(1, SESSIONS + 1):
        events = record_steps(bench.device, case.call, PROFILED_STEPS)
        records.write("session", session=session, **session_fields(events))
        trace = records.path.parent / f"profiler-session-{session}.trace.json.gz"
        trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
        if session in (1, SESSIONS):
            _unprofiled(records, bench, case, f"after session {session}")
    null = measure_null_kernel(bench.device)
    records.write("null_kernel", **null.seconds, no_graph=null.no_graph)


def session_fields(events: list[Event]) -> dict[str, object]:
    """Kernels, busy and span seconds of each step, by both ways to find them; launch calls over all steps."""
    fields: dict[str, object] = {}
    complete = complete_events(events)
    marks = step_marks(complete)
    for name, way in WAYS.items():
        works = match_work(complete, marks, way)
        fields[f"kernels_by_{name}"] = [len(work.kernels) or None for work in works]
        fields[f"busy_seconds_by_{name}"] = [busy_microseconds(work.kernels) / 1e6 or None for work in works]
        fields[f"span_seconds_by_{name}"] = [_span_seconds(work.kernels) for work in works]
        fields[f"unknown_by_{name}"] = [work.unknown for work in works]
    names = [event["name"] for event in complete if event.get("cat") in RUNTIME]
    fields["launches"] = sum(name in LAUNCH_CALLS for name in names)
    fields["graph_launches"] = sum(name in GRAPH_LAUNCH_CALLS for name in names)
    return fields


def _span_seconds(kernels: list[Event]) -> float | None:
    """From the first kernel's begin to the last one's end, gaps included; None without kernels."""
    if not kernels:
        return None
    ends = (kernel["ts"] + kernel["dur"] for kernel in kernels)
    return float(max(ends) - min(kernel["ts"] for kernel in kernels)) / 1e6


def _unprofiled(records: Records, bench: Bench, case: Case, when: str) -> None:
    """Dispatch and the device's time per step, without a profiler session."""
    dispatch = _dispatch_seconds(bench, case)
    queued = queued_time(CudaQueue(), case.call)
    records.write(
        "unprofiled",
        when=when,
        dispatch_seconds=dispatch,
        queued_seconds=queued.seconds.value,
        upper_bound=queued.upper_bound,
    )


def _dispatch_seconds(bench: Bench, case: Case) -> float:
    """Median seconds until a call returns that was issued to an idle device."""
    seconds = []
    for _ in range(CALLS):
        seconds.append(case.call_seconds())
        bench.synchronise()
    return median(seconds)


def _metered(case: Case, which: str) -> float:
    """Seconds per step of some decode steps, each with its fetch, measured in full or not at all."""
    meter = new_meter(torch.device("cuda"), PROFILED_BATCH, "full" if which == "full" else "off")
    readings = Readings()

    def run(steps: int) -> None:
        for _ in range(steps):
            _, greedy = meter.run(case.step, case.arguments, readings)
            meter.fetch(meter.copy(greedy), readings)

    run(PROFILED_STEPS)
    began = perf_counter_ns()
    run(STEPS_PER_ROUND)
    return (perf_counter_ns() - began) / 1e9 / STEPS_PER_ROUND


# Sections `ladder` and `float32`: parity, in bfloat16 also speed, of the default modes and `cuda-graph`

LADDER_BATCHES = [1, 8]
LADDER_ROUNDS = 8
NEW_TOKENS = 64
PROMPT = "def mean(values):\n"
CAPTURED = "cuda-graph"


def ladder_modes() -> list[str]:
    """The default ones, and the captured one: with it fusion and launches are told apart."""
    return named_modes([*default_modes(), CAPTURED])


def ladder(records: Records, dtype: str) -> None:
    """Warm the modes up in `dtype`; in bfloat16 run jobs as well. A record per job and change of a mode."""
    timed = dtype == "bfloat16"
    batches = LADDER_BATCHES if timed else [LADDER_BATCHES[1]]
    settings = _settings(ladder_modes(), batches, dtype=dtype)
    prepare_process(settings.cache_folder)
    work = list(jobs()) if timed else []
    records.write("plan", modes=settings.modes, batches=settings.batch_sizes, jobs=len(work))
    inbox = LocalInbox(work, lambda message: watch(records, message))
    Engine(settings, inbox).run()


def jobs() -> Iterable[Job]:
    """Rounds over all cells in fresh order, the first of them profiled: it tells what the modes launch."""
    cells = [(mode, batch) for mode in ladder_modes() for batch in LADDER_BATCHES]
    for number in range(LADDER_ROUNDS + 1):
        Random(number).shuffle(cells)
        for mode, batch in cells:
            name, profile = f"{mode}-{batch}-{number}", number == PROFILED_ROUND
            yield local_job(name, mode, [PROMPT] * batch, NEW_TOKENS, ignore_eos=True, profile=profile)


def watch(records: Records, message: ToFront) -> None:
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


# Section `sizes`: decode steps of `small` and `base`, whose weights are seeded, under the roof of memory.
# Kernels come last: the profiler stays attached after its first session, and slows what is launched then.

MODELS = ("small", "base")
SIZES_MODES = (GRAPHS, "inference_mode")
SIZES_BATCHES = [1, 32, 128]
SIZES_STEPS = 30
KERNELS_KEPT = 12


def sizes(records: Records) -> None:
    """A record per batch, model and mode, smallest batch of both models first; then one of its kernels."""
    prepare_process(os.environ["LAUNCHBOUND_CACHE_FOLDER"])
    opened: dict[str, tuple[Bench, Roof]] = {}
    for batch, model, mode in product(SIZES_BATCHES, MODELS, SIZES_MODES):
        if model not in opened:
            bench = Bench(_settings(SIZES_MODES, SIZES_BATCHES, model=model))
            opened[model] = bench, measure_roof(bench)
            roof = opened[model][1]
            records.write("roof", model=model, bandwidth=roof.bandwidth, step_bytes=roof.step_bytes)
        bench, roof = opened[model]
        records.write("size", model=model, **_measured(bench, roof, bench.case(mode, batch)))
    for batch, model, mode in product(SIZES_BATCHES, MODELS, SIZES_MODES):
        bench, roof = opened[model]
        records.write("kernels", model=model, **_kernels(bench, roof, bench.case(mode, batch)))


def _measured(bench: Bench, roof: Roof, case: Case) -> dict[str, object]:
    hosts, walls = [], []
    for _ in range(SIZES_STEPS):
        bench.synchronise()
        began = perf_counter_ns()
        hosts.append(case.call_seconds())
        bench.synchronise()
        walls.append((perf_counter_ns() - began) / 1e9)
    batch = case.buffers.bucket
    queued = queued_time(CudaQueue(), case.call)
    return {
        "mode": case.mode,
        "batch": batch,
        "attended_tokens": step_shape(case.arguments).attended_tokens,
        "dispatch_seconds": median(hosts),
        "wall_seconds": median(walls),
        "device_seconds": queued.seconds.value,
        "device_upper_bound": queued.upper_bound,
        "device_roofline": _roofline(roof, batch, queued.seconds),
    }


def _kernels(bench: Bench, roof: Roof, case: Case) -> dict[str, object]:
    table = kernel_table(bench, case, lambda line: None)
    batch = case.buffers.bucket
    attended = step_shape(case.arguments).attended_tokens
    names: dict[str, object] = {"mode": case.mode, "batch": batch, "attended_tokens": attended}
    if table is None:
        return {**names, "kernels": None, "kernel_roofline": None}
    return {
        **names,
        "kernels": {**msgspec.to_builtins(table), "rows": table.rows[:KERNELS_KEPT]},
        "kernel_roofline": _roofline(roof, batch, median_interval(table.busy_steps_seconds)),
    }


def _roofline(roof: Roof, batch: int, seconds: Interval) -> dict[str, object] | None:
    found = roof.over(batch, seconds)
    if found is None:
        return None
    return {**asdict(found), "attained": as_json(found.attained), "share": as_json(found.share)}


SECTIONS: dict[str, Callable[..., None]] = {
    "device": device,
    "profiler": profiler,
    "ladder": ladder,
    "tests": gpu_tests,
    "sizes": sizes,
}

if __name__ == "__main__":
    SECTIONS[sys.argv[1]](own_records(), *sys.argv[2:])
