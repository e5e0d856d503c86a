"""Section `sizes`: decode steps of `small` and `base`, whose weights are seeded, under the roof of memory."""

from __future__ import annotations

import os
from dataclasses import asdict
from statistics import median
from time import perf_counter_ns

from service.gpu_check.rows import Rows, own_rows
from service.measure.cases import Bench, Case
from service.measure.kernel_table import KernelTable, kernel_table
from service.measure.roof import Roof, measure_roof
from service.protocol.messages import EngineSettings
from service.statistics.intervals import Interval
from service.step.device_time import CudaQueue, device_time
from service.step.null_kernel import measure_null_kernel
from service.step.process_state import prepare_process

MODELS = ("small", "base")
MODES = ("reduce-overhead", "inference_mode")
BATCHES = [1, 32, 128]
STEPS = 30
KERNELS_KEPT = 12


def main(rows: Rows) -> None:
    """A row per batch, model and mode: the smallest batch of both models first."""
    cache = os.environ["LAUNCHBOUND_CACHE_FOLDER"]
    prepare_process(cache)
    benches: dict[str, tuple[Bench, Roof]] = {}
    null: float | None = None
    for batch in BATCHES:
        for model in MODELS:
            if model not in benches:
                benches[model] = _opened(model, cache)
                null = measure_null_kernel(benches[model][0].device).seconds.get("in_graph")
                roof = benches[model][1]
                rows.write("roof", model=model, bandwidth=roof.bandwidth, step_bytes=roof.step_bytes)
            for mode in MODES:
                bench, roof = benches[model]
                rows.write("size", model=model, **_measured(bench, roof, bench.case(mode, batch), null))


def _opened(model: str, cache: str) -> tuple[Bench, Roof]:
    settings = EngineSettings(
        address="", model=model, device="cuda", modes=list(MODES), batch_sizes=BATCHES, cache_folder=cache
    )
    bench = Bench(settings)
    return bench, measure_roof(bench)


def _measured(bench: Bench, roof: Roof, case: Case, null: float | None) -> dict[str, object]:
    """Wall, dispatch and device time of a decode step, its kernels, and both under the roof."""
    dispatch, wall = _clocked(bench, case)
    table = kernel_table(bench, case, null, lambda line: None)
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
        "kernel_roofline": None if table is None else _roofline(roof, batch, _exactly(table)),
        "kernels": None if table is None else {"most": table.rows[:KERNELS_KEPT], **_sums(table)},
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
    return None if found is None else asdict(found)


def _exactly(table: KernelTable) -> Interval:
    return Interval(table.busy_seconds, table.busy_seconds, table.busy_seconds, table.steps)


def _sums(table: KernelTable) -> dict[str, object]:
    names = ("kernels", "busy_seconds", "steps", "left_out", "null_kernel_seconds", "near_null_share")
    return {name: getattr(table, name) for name in names}


if __name__ == "__main__":
    main(own_rows())
