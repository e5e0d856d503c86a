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
from service.measure.fenced_kernels import device_work, kernels_by_id, kernels_by_window, record_fenced
from service.measure.queued_steps import queued_seconds
from service.measure.rounds import in_rounds, paired_median_ratio
from service.protocol.messages import EngineSettings
from service.step.meters import Readings, new_meter
from service.step.null_kernel import null_kernel_seconds
from service.step.process_state import prepare_process
from service.step.trace import GRAPH_LAUNCH_CALLS, LAUNCH_CALLS, Event

MODE = "reduce-overhead"
BATCH = 8
SESSIONS = 4
STEPS = 5
QUEUED = 20
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
        events = record_fenced(case.call, bench.synchronise, STEPS)
        rows.write("session", session=session, **session_fields(events))
        _keep(events, rows.path.parent / f"profiler-session-{session}.trace.json.gz")
        if session in (1, SESSIONS):
            _unprofiled(rows, bench, case, f"after session {session}")
    rows.write("null_kernel", **null_kernel_seconds(bench.device))


def session_fields(events: list[Event]) -> dict[str, object]:
    """Kernels, busy and span seconds of each step, by both ways to find them; launch calls over all steps."""
    fields: dict[str, object] = {}
    for way, found in (("id", kernels_by_id(events)), ("window", kernels_by_window(events))):
        works = [device_work(kernels) for kernels in found]
        fields[f"kernels_by_{way}"] = [work.kernels if work else None for work in works]
        fields[f"busy_seconds_by_{way}"] = [work.busy_seconds if work else None for work in works]
        fields[f"span_seconds_by_{way}"] = [work.span_seconds if work else None for work in works]
    names = [event["name"] for event in events if event.get("cat") in {"cuda_runtime", "cuda_driver"}]
    fields["launches"] = sum(name in LAUNCH_CALLS for name in names)
    fields["graph_launches"] = sum(name in GRAPH_LAUNCH_CALLS for name in names)
    return fields


def _unprofiled(rows: Rows, bench: Bench, case: Case, when: str) -> None:
    """Dispatch and the device's time per step, without a profiler session."""
    dispatch = []
    for _ in range(CALLS):
        dispatch.append(case.call_seconds())
        bench.synchronise()
    queued = [queued_seconds(case.call, QUEUED) for _ in range(5)]
    rows.write("unprofiled", when=when, dispatch_seconds=median(dispatch), queued_seconds=median(queued))


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
