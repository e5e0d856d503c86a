"""Section `sizes`: decode steps of `small` and `base`, whose weights are seeded, under the roof of memory.

Kernels come last: the profiler stays attached after its first session, and slows what is launched then.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from itertools import product
from statistics import median
from time import perf_counter_ns

import msgspec

from service.gpu_check.rows import Rows, own_rows
from service.measure.cases import Bench, Case
from service.measure.kernel_table import kernel_table
from service.measure.roof import Roof, measure_roof
from service.protocol.messages import EngineSettings
from service.statistics.intervals import Interval, as_json, median_interval
from service.step.device_time import CudaQueue, device_time
from service.step.null_kernel import measure_null_kernel
from service.step.process_state import prepare_process

MODELS = ("small", "base")
MODES = ("reduce-overhead", "inference_mode")
BATCHES = [1, 32, 128]
STEPS = 30
KERNELS_KEPT = 12


def main(rows: Rows) -> None:
    """A row per batch, model and mode, the smallest batch of both models first; then one of its kernels."""
    cache = os.environ["LAUNCHBOUND_CACHE_FOLDER"]
    prepare_process(cache)
    opened: dict[str, tuple[Bench, Roof]] = {}
    for batch, model, mode in product(BATCHES, MODELS, MODES):
        if model not in opened:
            bench, roof = opened[model] = _opened(model, cache)
            rows.write("roof", model=model, bandwidth=roof.bandwidth, step_bytes=roof.step_bytes)
        bench, roof = opened[model]
        rows.write("size", model=model, **_measured(bench, roof, bench.case(mode, batch)))
    null = measure_null_kernel(opened[MODELS[0]][0].device).seconds.get("in_graph")
    for batch, model, mode in product(BATCHES, MODELS, MODES):
        bench, roof = opened[model]
        rows.write("kernels", model=model, **_kernels(bench, roof, bench.case(mode, batch), null))


def _opened(model: str, cache: str) -> tuple[Bench, Roof]:
    settings = EngineSettings(
        address="", model=model, device="cuda", modes=list(MODES), batch_sizes=BATCHES, cache_folder=cache
    )
    bench = Bench(settings)
    return bench, measure_roof(bench)


def _measured(bench: Bench, roof: Roof, case: Case) -> dict[str, object]:
    """Wall, dispatch and device time of a decode step, and the latter under the roof."""
    dispatch, wall = _clocked(bench, case)
    batch = case.buffers.bucket
    queued = device_time(CudaQueue(), case.call, "decode", batch)
    over = Interval(queued.seconds, queued.low, queued.high, queued.samples)
    return {
        "mode": case.mode,
        "batch": batch,
        "dispatch_seconds": dispatch,
        "wall_seconds": wall,
        "device_seconds": queued.seconds,
        "device_upper_bound": queued.upper_bound,
        "device_roofline": _roofline(roof, batch, over),
    }


def _kernels(bench: Bench, roof: Roof, case: Case, null: float | None) -> dict[str, object]:
    """The kernels of a decode step, the longest by name, and their time under the roof."""
    table = kernel_table(bench, case, null, lambda line: None)
    batch = case.buffers.bucket
    names: dict[str, object] = {"mode": case.mode, "batch": batch}
    if table is None:
        return {**names, "kernels": None, "kernel_roofline": None}
    return {
        **names,
        "kernels": {**msgspec.to_builtins(table), "rows": table.rows[:KERNELS_KEPT]},
        "kernel_roofline": _roofline(roof, batch, median_interval(table.busy_steps_seconds)),
    }


def _clocked(bench: Bench, case: Case) -> tuple[float, float]:
    """Median seconds until a step's call returns, and until the device is done."""
    hosts, walls = [], []
    for _ in range(STEPS):
        bench.synchronise()
        began = perf_counter_ns()
        hosts.append(case.call_seconds())
        bench.synchronise()
        walls.append((perf_counter_ns() - began) / 1e9)
    return median(hosts), median(walls)


def _roofline(roof: Roof, batch: int, seconds: Interval) -> dict[str, object] | None:
    found = roof.over(batch, seconds)
    if found is None:
        return None
    return {**asdict(found), "attained": as_json(found.attained), "share": as_json(found.share)}


if __name__ == "__main__":
    main(own_rows())
