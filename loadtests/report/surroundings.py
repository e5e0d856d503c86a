"""Where a run was measured, and how to measure it again."""

from __future__ import annotations

import shlex
from typing import Any

from loadtests.report.formatting import cores, size
from loadtests.run.run_file import PLAN_FILE, SweepRun
from loadtests.run.target import workload_of
from service.workloads import FORWARD


def subject(run: SweepRun) -> list[str]:
    engine, here = run.engine, run.environment
    on_gpu = engine.get("device") == "cuda"
    phrases = [
        f"model {engine.get('model', 'unknown')}",
        str(engine.get("dtype", "")),
        str((engine.get("device_name") if on_gpu else here.get("cpu")) or "unknown processor"),
        "" if on_gpu else _threads(engine),
        f"torch {engine.get('torch', 'unknown')}",
        run.started[:10],
        f"commit {here.get('commit') or 'unknown'}{'+' if here.get('dirty') else ''}",
    ]
    return [phrase for phrase in phrases if phrase]


def _threads(engine: dict[str, Any]) -> str:
    threads = engine.get("threads")
    return f"{threads} thread{'s' if threads != 1 else ''}"


Row = tuple[str, str | None]
"""Label and text; None: nothing to say."""


def environment(run: SweepRun) -> list[tuple[str, str]]:
    """The measurement's environment and the load generator's, as label and text."""
    workers = run.settings.get("workers", 1)
    processes = f"{workers} load processes and their master, all" if workers > 1 else "one process"
    generator = f"{processes} on {cores(run.client.cpus)}"
    rows = [*_of_engine(run.engine), *_of_machine(run), *_of_run(run), ("load generator", generator)]
    return [(label, text) for label, text in rows if text]


def _of_engine(engine: dict[str, Any]) -> list[Row]:
    shape = f", {engine.get('layers')} layers × {engine.get('width')}, context {engine.get('context')}"
    chunk = f", prefill chunk {engine.get('prefill_chunk')}"
    if workload_of(engine) is FORWARD:
        shape = chunk = ""
    linears, cuda = engine.get("linears"), engine.get("cuda")
    batching = engine.get("batching", "off")
    unsplit = engine.get("no_samples") if engine.get("device") == "cpu" else None
    return [
        ("model", f"{engine.get('model')}, {engine.get('parameters', 0):,} parameters{shape}"),
        ("inputs", engine.get("inputs")),
        ("model hash", str(engine.get("model_hash"))),
        ("device", f"{engine.get('device_name') or engine.get('device')}, {engine.get('dtype')}"),
        ("linear weights", linears and f"{linears['layout']}: {linears['reason']}"),
        ("attention", "; ".join(map(_attention, engine.get("attention") or []))),
        ("samples", unsplit and f"none, so no step is split: {unsplit}"),
        ("engine", f"{_threads(engine)} on {cores(engine.get('cpus'))}"),
        ("torch", f"{engine.get('torch')}" + (f", CUDA {cuda}" if cuda else "")),
        ("BLAS", engine.get("blas")),
        ("memory", _memory(engine)),
        ("shared device", engine.get("sharing_note")),
        ("profiler", engine.get("profiler_note")),
        ("requests merged", None if batching == "off" else batching),
        ("batch buckets", f"{engine.get('batch_buckets')}{chunk}"),
    ]


def _attention(one: dict[str, Any]) -> str:
    backends = " and ".join(one["backends"]) or "not torch's"
    return f"{one['phase']} at batch {one['batch']}: {backends}"


def _memory(engine: dict[str, Any]) -> str:
    """The engine's memory by its own names; counts of retries and failures are not bytes."""
    known = {**(engine.get("memory") or {}), "peak resident": engine.get("peak_resident_bytes")}
    shown = [
        f"{name.replace('_', ' ')} {value if name in ('alloc_retries', 'ooms') else size(value)}"
        for name, value in known.items()
        if value is not None
    ]
    return ", ".join(shown) or "not recorded"


def _of_machine(run: SweepRun) -> list[Row]:
    """The service's machine; an older service does not say it, and ours would be the load generator's."""
    here = run.environment
    rows: list[Row] = [("machine", "unknown: the service is of a version that does not say")]
    if here:
        each = here.get("threads_per_core")
        threads = "" if each is None else f" ({each} to a physical core, as the system says)"
        clock, governor = here.get("cpu_megahertz") or "unknown", here.get("governor") or "not readable"
        gpus = (", ".join(f"{name} {value}" for name, value in gpu.items()) for gpu in here.get("gpus") or [])
        rows = [
            ("CPU", f"{here.get('cpu')}, {here.get('cores')} cores{threads}"),
            ("instruction sets", here.get("cpu_features")),
            *(("GPU", gpu) for gpu in gpus),
            ("system", f"{here.get('distribution')}, {here.get('system')}, Python {here.get('python')}"),
            ("clock", f"{clock} MHz, governor {governor}"),
        ]
    load = ", ".join(f"{load:.2f}" for load in here.get("load_average") or [])
    clocks = [("GPU while measured", _clocks(gpu)) for part in run.parts for gpu in part.gpus]
    return [*rows, *clocks, ("load average", load or "unknown")]


def _clocks(gpu: dict[str, Any]) -> str:
    """One GPU's samples over a part: median and range of each number, and what lowered its clocks."""
    units = {
        "clocks.sm": "MHz SM",
        "clocks.mem": "MHz memory",
        "power.draw": "W",
        "temperature.gpu": "°C",
        "utilization.gpu": "% of the time at work",
    }
    shown = [
        f"{found['median']:g} {unit} ({found['least']:g} to {found['most']:g})"
        for name, unit in units.items()
        if (found := gpu.get(name))
    ]
    if "joules" in gpu:
        shown.append(f"{gpu['joules']:.0f} J in {gpu['seconds']:.0f} s")
    lowered = f"lowered by {', '.join(gpu['reasons'])}" if gpu["reasons"] else "never lowered"
    idle = f", {gpu['idle']} more of an idle GPU left out" if gpu.get("idle") else ""
    note = f"; {gpu['note']}" if "note" in gpu else ""
    count = gpu["samples"] - gpu.get("idle", 0)
    clocks = f"clocks {lowered}" if count else "never at work"
    return f"{', '.join(shown) or 'no numbers'}; {clocks}; {count} samples{idle}{note}"


def _of_run(run: SweepRun) -> list[Row]:
    dirty = {True: " with uncommitted changes", False: ", clean", None: ""}[run.environment.get("dirty")]
    parts = f", in {len(run.parts)} parts" if len(run.parts) > 1 else ""
    return [
        ("commit", f"{run.environment.get('commit') or 'unknown'}{dirty}"),
        ("run", f"{run.run}, {run.started} to {run.ended or 'unknown'}{parts}"),
        ("options over the plan", ", ".join(f"{name} {value}" for name, value in run.overrides.items())),
    ]


def reproduce(run: SweepRun) -> list[str]:
    """Commands that measure the same again, with the variables that the service was started with."""
    plan = ["--plan", PLAN_FILE] if run.plan_from_file else ["--preset", run.plan.preset]
    command = ["launchbound", "sweep", *plan, "--seed", str(run.plan.seed)]
    for name in ("model", "device", "dtype", "modes", "batch_sizes"):
        if value := run.settings.get(name) or run.overrides.get(name):
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            command += [f"--{name.replace('_', '-')}", text]
    if (workers := run.settings.get("workers", 1)) > 1:
        command += ["--workers", str(workers)]
    variables = (run.service or {}).get("environment", {})
    assigned = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    commit = run.environment.get("commit")
    lines = [f"git checkout {commit}"] if commit else []
    return [*lines, " ".join([*assigned, shlex.join(command)])]
