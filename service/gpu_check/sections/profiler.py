"""Section `profiler`: what four profiler sessions in one process say of the same replayed graph.

Kernels by correlation id, by window and by queued replays without a profiler; dispatch before and after the
first session; what measuring costs; and a capture beside it all.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import torch

from service.gpu_check.rows import Rows, own_rows
from service.measure.cases import Bench, Case
from service.measure.rounds import in_rounds, paired_median_ratio
from service.protocol.messages import EngineSettings
from service.step.device_time import CudaQueue, device_time
from service.step.kernel_matching import busy_microseconds, match_work
from service.step.meters import Readings, new_meter
from service.step.null_kernel import measure_null_kernel
from service.step.process_state import prepare_process
from service.step.profiling import record_steps
from service.step.trace import (
    GRAPH_LAUNCH_CALLS,
    LAUNCH_CALLS,
    RUNTIME,
    Event,
    Matched,
    complete_events,
    step_marks,
)

MODE = "reduce-overhead"
WAYS: dict[str, Matched] = {"id": "correlation", "window": "window"}
BATCH = 8
SESSIONS = 4
STEPS = 5
CALLS = 200
ROUNDS = 30
STEPS_PER_ROUND = 20


def main(rows: Rows) -> None:
    """Profile the same step again and again, and write a row after each session."""
    cache = os.environ["LAUNCHBOUND_CACHE_FOLDER"]
    prepare_process(cache)
    settings = EngineSettings(
        address="", device="cuda", modes=[MODE], batch_sizes=[BATCH], cache_folder=cache
    )
    bench = Bench(settings)
    case = bench.case(MODE, BATCH)
    _unprofiled(rows, bench, case, "before the first session")
    ratio = in_rounds({which: partial(_metered, case, which) for which in ("full", "off")}, ROUNDS, "meter")
    found = paired_median_ratio(ratio["full"], ratio["off"])
    rows.write("instrumentation", value=found.value, low=found.low, high=found.high, rounds=found.samples)
    for session in range(1, SESSIONS + 1):
        events = record_steps(bench.device, case.call, STEPS)
        rows.write("session", session=session, **session_fields(events))
        _keep(events, rows.path.parent / f"profiler-session-{session}.trace.json.gz")
        if session in (1, SESSIONS):
            _unprofiled(rows, bench, case, f"after session {session}")
    null = measure_null_kernel(bench.device)
    rows.write("null_kernel", **null.seconds, no_graph=null.no_graph)


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


def _unprofiled(rows: Rows, bench: Bench, case: Case, when: str) -> None:
    """Dispatch and the device's time per step, without a profiler session."""
    dispatch = dispatch_seconds(bench, case)
    queued = device_time(CudaQueue(), case.call, "decode", BATCH)
    rows.write(
        "unprofiled",
        when=when,
        dispatch_seconds=dispatch,
        queued_seconds=queued.seconds,
        upper_bound=queued.upper_bound,
    )


def dispatch_seconds(bench: Bench, case: Case) -> float:
    """Median seconds until a call returns that was issued to an idle device."""
    seconds = []
    for _ in range(CALLS):
        seconds.append(case.call_seconds())
        bench.synchronise()
    return median(seconds)


def _metered(case: Case, which: str) -> float:
    """Seconds per step of some decode steps, each with its fetch, measured in full or not at all."""
    meter = new_meter(torch.device("cuda"), BATCH, "full" if which == "full" else "off")
    readings = Readings()

    def steps(count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                _, greedy = meter.run(case.step, case.arguments, readings)
                meter.fetch(greedy, readings)

        return run

    steps(STEPS)()
    began = perf_counter_ns()
    steps(STEPS_PER_ROUND)()
    return (perf_counter_ns() - began) / 1e9 / STEPS_PER_ROUND


def _keep(events: list[Event], path: Path) -> None:
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))


if __name__ == "__main__":
    main(own_rows())
