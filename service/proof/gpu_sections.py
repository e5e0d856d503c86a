"""Sections of `make gpu-check` that write records: `python -m service.proof.gpu_sections SECTION [DTYPE]`."""

from __future__ import annotations

import gzip
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.metadata import distributions
from itertools import product
from random import Random
from time import perf_counter_ns
from typing import Any

import msgspec
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from models.config import CONFIGS
from service.engine.inbox import LocalInbox, local_job
from service.engine.loop import Engine
from service.engine.parts import EngineParts
from service.front.machine import machine
from service.measure.cases import Bench, Case
from service.measure.rounds import in_rounds, paired_median_ratio
from service.measure.step_costs import STEPS, table_of
from service.modes import default_modes, named_modes
from service.proof.gpu_goals import GRAPHS, PROFILED_ROUND, SESSIONS, Records, own_records
from service.records import EngineSettings, EngineStatus, Job, ModeStatus, Outcome, ToFront
from service.step import trace
from service.step.buffers import DECODE_POSITION
from service.step.callables import AnyStep
from service.step.device_time import CudaQueue, queued_time
from service.step.meters import Readings, new_meter
from service.step.process_state import prepare_process
from service.step.profiling import record_steps
from service.step.roofs import memory_bandwidth
from service.step.trace import Event, complete_events, match_work, step_marks


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


# Section `device`: versions, driver, clocks, copy bandwidth; the first records on disk

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


# Section `profiler`: what four profiler sessions in one process say of the same replayed graph, beside queued
# replays without a profiler; what measuring costs.

PROFILED_MODE = GRAPHS
PROFILED_BATCH = 8
PROFILED_STEPS = 5
METER_ROUNDS = 30
STEPS_PER_ROUND = 20


def profiler(records: Records) -> None:
    """Profile the same step again and again, and write a record after each session."""
    settings = _settings([PROFILED_MODE], [PROFILED_BATCH])
    prepare_process(settings.cache_folder, settings.model)
    bench = Bench(settings)
    case = bench.case(PROFILED_MODE, PROFILED_BATCH)
    queued = queued_time(CudaQueue(), case.call)
    records.write("unprofiled", queued_seconds=queued.seconds.value, upper_bound=queued.upper_bound)
    arms = {which: partial(_metered, case, which) for which in ("full", "off")}
    ratio = in_rounds(arms, METER_ROUNDS, "meter")
    found = paired_median_ratio(ratio["full"], ratio["off"])
    records.write("instrumentation", value=found.value, low=found.low, high=found.high, rounds=found.samples)
    for session in range(1, SESSIONS + 1):
        events = record_steps(bench.device, case.call, PROFILED_STEPS)
        records.write("session", session=session, **session_fields(events))
        path = records.path.parent / f"profiler-session-{session}.trace.json.gz"
        path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))


def session_fields(events: list[Event]) -> dict[str, object]:
    """Kernels, busy and span seconds of each step, found by its window; launch calls over all steps."""
    complete = complete_events(events)
    works = match_work(complete, step_marks(complete), "window")
    names = [event["name"] for event in complete if event.get("cat") in trace.RUNTIME]
    return {
        "kernels_by_window": [len(work.kernels) or None for work in works],
        "busy_seconds_by_window": [trace.busy_microseconds(work.kernels) / 1e6 or None for work in works],
        "span_seconds_by_window": [_span_seconds(work.kernels) for work in works],
        "unknown_by_window": [work.unknown for work in works],
        "launches": sum(name in trace.LAUNCH_CALLS for name in names),
        "graph_launches": sum(name in trace.GRAPH_LAUNCH_CALLS for name in names),
    }


def _span_seconds(kernels: list[Event]) -> float | None:
    """From the first kernel's begin to the last one's end, gaps included; None without kernels."""
    begin = min((kernel["ts"] for kernel in kernels), default=None)
    return None if begin is None else max(one["ts"] + one["dur"] - begin for one in kernels) / 1e6


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


# Sections `ladder` and `float32`: parity, in bfloat16 also speed, of the default modes and the captured ones.
# Section `tuned`: parity of those that tune, and so compile for minutes

LADDER_BATCHES = [1, 8]
NEW_TOKENS = 64
PROFILED_TOKENS = 16
"""Of a job under the profiler, whose trace of every kernel takes longest."""

PROMPT = "def mean(values):\n"
CAPTURED = "cuda-graph", "compiled-captured"
TUNED = "max-autotune", "aot-inductor"
LADDER_MODES = named_modes([*default_modes(), *CAPTURED])
"""With the captured ones, fusion and launches are told apart."""


def ladder(records: Records, dtype: str) -> None:
    """Warm the modes up in `dtype`; in bfloat16 run jobs as well, the last round under the profiler."""
    timed = dtype == "bfloat16"
    batches = LADDER_BATCHES if timed else [LADDER_BATCHES[1]]
    rounds = range(PROFILED_ROUND + 1) if timed else range(0)
    serve(records, _settings(LADDER_MODES, batches, dtype=dtype), rounds)


def tuned(records: Records) -> None:
    serve(records, _settings(TUNED, LADDER_BATCHES), range(0))


def serve(records: Records, settings: EngineSettings, rounds: Iterable[int]) -> Engine:
    """Warm an engine up and have it serve `rounds` of jobs. A record per job and change of a mode."""
    prepare_process(settings.cache_folder, settings.model)
    work = [job for number in rounds for job in jobs(settings, number)]
    records.write(
        "plan",
        model=settings.model,
        modes=settings.modes,
        batches=settings.batch_sizes,
        jobs=len(work),
        positions=DECODE_POSITION + 1,
    )
    seen = partial(watch, records)
    engine = Engine(settings, LocalInbox(work, seen) if work else Warmed(settings.modes, seen))
    engine.run()
    return engine


def jobs(settings: EngineSettings, number: int) -> Iterable[Job]:
    """One of each cell, in an order of this round's own."""
    cells = list(product(settings.modes, settings.batch_sizes))
    Random(number).shuffle(cells)
    for mode, batch in cells:
        name, profile = f"{mode}-{batch}-{number}", number == PROFILED_ROUND
        tokens = PROFILED_TOKENS if profile else NEW_TOKENS
        yield local_job(name, mode, [PROMPT] * batch, tokens, ignore_eos=True, profile=profile)


class Warmed(LocalInbox):
    """Without jobs: the engine is stopped once each of `modes` is ready or has failed, its parity known."""

    def __init__(self, modes: Sequence[str], watch: Callable[[ToFront], None]) -> None:
        super().__init__([], watch)
        self._awaited = modes

    @property
    def stopped(self) -> bool:
        states = [self.modes[name].state for name in self._awaited if name in self.modes]
        return len(states) == len(self._awaited) and {"ready", "failed"}.issuperset(states)


def watch(records: Records, message: ToFront) -> None:
    if isinstance(message, ModeStatus) and message.state != "cold":
        records.write("mode", **msgspec.to_builtins(message))
    elif isinstance(message, Outcome):
        fields = msgspec.to_builtins(msgspec.structs.replace(message, outputs=[]))
        records.write("job", outcome=fields.pop("kind"), **fields)
    elif isinstance(message, EngineStatus) and message.warm:
        records.write("engine", **msgspec.to_builtins(message))


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

    prepare_process(os.environ["LAUNCHBOUND_CACHE_FOLDER"], "tiny")  # what they compile, the ladder shares
    raise SystemExit(int(pytest.main([*PYTEST, "tests/gpu"], plugins=[RecordPerTest(records)])))


# Sections `small`, `base` and `batches`: what a served token takes of models with seeded weights. A process
# each: the profiler, which comes last, stays attached, and would slow what another engine launches.

SIZES_ROUNDS = 6
KERNELS_KEPT = 12
SIZES_MODES = named_modes([GRAPHS, *CAPTURED, "inference_mode"])
"""Those that replay a graph, and what they are without one."""


def sizes(records: Records, model: str, batches: str) -> None:
    """Serve `model` at `batches`, as '8,64', unprofiled; then a record of each mode's kernels per step."""
    settings = _settings(SIZES_MODES, [int(batch) for batch in batches.split(",")], model=model)
    engine = serve(records, settings, range(SIZES_ROUNDS))
    for (mode, ready), batch in product(engine.parts.warmup.ready().items(), settings.batch_sizes):
        kernels = _kernels(engine.parts, batch, ready.steps["decode", batch])
        records.write("kernels", model=model, mode=mode, batch=batch, kernels=kernels)


@torch.no_grad()
def _kernels(parts: EngineParts, batch: int, step: AnyStep) -> dict[str, object] | None:
    """The table of a decode step, called as the engine calls it: nothing may be compiled or captured now."""
    call = partial(step, *parts.workload.inputs[batch].measured("decode"))
    events = complete_events(record_steps(parts.loaded.device, call, STEPS))
    table = table_of([work.kernels for work in match_work(events, step_marks(events))])
    return {**msgspec.to_builtins(table), "rows": table.rows[:KERNELS_KEPT]} if table else None


# Section `attention`: what the attention of one layer's decode step takes on the device, by torch's kernels

ATTENTION_BATCHES = 1, 16, 64
ATTENTION_REACHES = 64, 512
ATTENTION = {
    "math": (SDPBackend.MATH, True),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, True),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, True),
    "flash": (SDPBackend.FLASH_ATTENTION, False),
}
"""By name: torch's backend, and whether it is given the step's mask. Flash attention takes none; it divides
the keys of a sequence among blocks, and would have to be called for each length.
"""


def attention(records: Records, device: str = "cuda") -> None:
    """In the shapes of `small`, in bfloat16, queued: a record for each kernel, or why it refuses."""
    shape = CONFIGS["small"]
    rows = shape.heads // shape.kv_heads
    random = partial(torch.randn, dtype=torch.bfloat16, device=device)
    for batch, reach in product(ATTENTION_BATCHES, ATTENTION_REACHES):
        query = random(batch, shape.kv_heads, rows, shape.head_width)
        keys, values = (random(batch, reach, shape.kv_heads, shape.head_width).transpose(1, 2) for _ in "kv")
        mask = torch.zeros(batch, 1, rows, reach, dtype=query.dtype, device=device)
        for name, (backend, masked) in ATTENTION.items():
            call = partial(
                scaled_dot_product_attention, query, keys, values, attn_mask=mask if masked else None
            )
            cell = {"backend": name, "batch": batch, "reach": reach}
            try:
                with torch.inference_mode(), sdpa_kernel(backend):
                    found = queued_time(CudaQueue(), call)
            except RuntimeError as error:
                records.write("attention", **cell, unavailable=str(error).splitlines()[0])
                continue
            ends = {"low": found.seconds.low, "high": found.seconds.high, "upper_bound": found.upper_bound}
            records.write("attention", **cell, seconds=found.seconds.value, **ends)


SECTIONS: dict[str, Callable[..., None]] = {
    "device": device,
    "profiler": profiler,
    "ladder": ladder,
    "tuned": tuned,
    "tests": gpu_tests,
    "sizes": sizes,
    "attention": attention,
}

if __name__ == "__main__":
    SECTIONS[sys.argv[1]](own_records(), *sys.argv[2:])
