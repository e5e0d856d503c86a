"""Where a run was measured, how its modes came up, and how to measure it again, as plain values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from loadtests.report import formatting
from loadtests.report.payback import REMEDY
from loadtests.report.plotting import colour
from loadtests.run.run_file import PLAN_FILE, SweepRun
from loadtests.run.target import linear_layout
from service.modes import AUTO, doubles


def subject(run: SweepRun) -> list[str]:
    """What was measured where, in a few short phrases."""
    engine = run.engine
    device = engine.get("device_name") if engine.get("device") == "cuda" else run.environment.get("cpu")
    threads = engine.get("threads")
    phrases = [
        f"model {engine.get('model', 'unknown')}",
        str(engine.get("dtype", "")),
        str(device or "unknown processor"),
        f"{threads} thread{'s' if threads != 1 else ''}" if engine.get("device") == "cpu" else "",
        f"torch {engine.get('torch', 'unknown')}",
        run.started[:10],
        f"commit {run.environment.get('commit') or 'unknown'}"
        + ("+" if run.environment.get("dirty") else ""),
    ]
    return [phrase for phrase in phrases if phrase]


def mode_status(run: SweepRun, name: str) -> dict[str, Any]:
    """Parity, warm-up and effective form of one mode, as text."""
    status = run.mode(name)
    parity = status.get("parity")
    compilations = [c["seconds"] for c in status.get("compilations") or []] or status.get("compile_seconds")
    row: dict[str, Any] = {
        "mode": name,
        "colour": colour(name),
        "removes": status.get("removes") or "",
        "effective": status.get("effective") or "unknown",
        "reason": status.get("reason") or "",
        "warmup": f"{formatting.significant(status['warmup_seconds'])} s"
        if status.get("warmup_seconds")
        else "–",
        "cache": status.get("cache") or "–",
        "compilations": len(compilations or []),
        "compile_seconds": f"{formatting.significant(sum(compilations))} s" if compilations else "–",
        "cold_start": _cold_start(status),
        "parity": "not checked",
        "difference": "–",
        "tokens": "–",
        "passed": None,
    }
    if parity:
        row["passed"] = parity["passed"]
        row["parity"] = "in parity" if parity["passed"] else "OUT OF PARITY"
        row["difference"] = f"{parity['max_abs_logit_difference']:.1e} of {parity['tolerance']:.0e} allowed"
        row["tokens"] = (
            f"{parity['differing_tokens']} of {parity['positions']} differ, {parity['near_ties']} near ties"
        )
    return row


def _cold_start(status: dict[str, Any]) -> str:
    """What all compilations of a mode take with an empty compile cache."""
    compilations = status.get("compilations") or []
    if not compilations:
        return "unknown" if status.get("compile_seconds") else "–"
    seconds = [c["seconds"] if c["cold"] else c.get("cold_seconds") for c in compilations]
    if None in seconds:
        return f"unknown: {REMEDY}"
    return f"{formatting.significant(sum(seconds))} s"


def environment(run: SweepRun) -> Iterator[tuple[str, str]]:
    """The measurement's environment, as label and text."""
    engine = run.engine
    here = run.environment
    shape = f"{engine.get('layers')} layers × {engine.get('width')}, context {engine.get('context')}"
    yield "model", f"{engine.get('model')}, {engine.get('parameters', 0):,} parameters, {shape}"
    yield "model hash", str(engine.get("model_hash"))
    yield "device", f"{engine.get('device_name') or engine.get('device')}, {engine.get('dtype')}"
    if linears := engine.get("linears"):
        yield "linear weights", f"{linears['layout']}: {linears['reason']}"
    if attention := engine.get("attention"):
        yield "attention", "; ".join(_attention(one) for one in attention)
    for mode, status in _left_out(run).items():
        yield "left out", f"{mode}, which runs as {status['effective']} here: {status['reason']}"
    if engine.get("no_samples") and engine.get("device") == "cpu":
        yield "samples", f"none, so no step is split: {engine['no_samples']}"
    threads = engine.get("threads")
    yield "engine", f"{threads} thread{'s' if threads != 1 else ''} on {formatting.cores(engine.get('cpus'))}"
    yield "torch", f"{engine.get('torch')}" + (f", CUDA {engine['cuda']}" if engine.get("cuda") else "")
    if blas := engine.get("blas"):
        yield "BLAS", blas
    yield from _machine(here)
    for part in run.parts:
        for gpu in part.gpus:
            yield "GPU while measured", _clocks(gpu)
    yield "memory", _memory(engine)
    load = ", ".join(f"{load:.2f}" for load in here.get("load_average") or [])
    yield "load average", load or "unknown"
    dirty = {True: " with uncommitted changes", False: ", clean", None: ""}[here.get("dirty")]
    yield "commit", f"{here.get('commit') or 'unknown'}{dirty}"
    parts = f", in {len(run.parts)} parts" if len(run.parts) > 1 else ""
    yield "run", f"{run.run}, {run.started} to {run.ended or 'unknown'}{parts}"
    if run.overrides:
        replaced = ", ".join(f"{name} {value}" for name, value in run.overrides.items())
        yield "options over the plan", replaced
    yield "context", f"{formatting.whole(engine.get('context'))} cache positions per sequence"
    if (batching := engine.get("batching", "off")) != "off":
        window = engine.get("batch_window_ms")
        yield "requests merged", batching if window is None else f"{batching} of {window:g} ms"
    yield "batch buckets", f"{engine.get('batch_buckets')}, prefill chunk {engine.get('prefill_chunk')}"


def kernels_of(run: SweepRun) -> str:
    """What decides which kernels run, as far as the service says it, in a few short phrases."""
    engine = run.engine
    threads = engine.get("threads")
    layout, features = linear_layout(engine), run.environment.get("cpu_features")
    phrases = [
        f"torch {engine.get('torch', 'unknown')}",
        str(engine.get("blas") or ""),
        f"{threads} thread{'s' if threads != 1 else ''}",
        f"linear weights {layout}" if layout else "",
        str(features or ""),
    ]
    return ", ".join(filter(None, phrases))


def _machine(here: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The service's machine; an older service does not say it, and ours would be the load generator's."""
    if not here:
        yield "machine", "unknown: the service is of a version that does not say"
        return
    yield "CPU", f"{here.get('cpu')}, {here.get('cores')} cores{_threads_per_core(here)}"
    if features := here.get("cpu_features"):
        yield "instruction sets", features
    for gpu in here.get("gpus") or []:
        yield "GPU", ", ".join(f"{name} {value}" for name, value in gpu.items())
    yield "system", f"{here.get('distribution')}, {here.get('system')}, Python {here.get('python')}"
    yield (
        "clock",
        f"{here.get('cpu_megahertz') or 'unknown'} MHz, governor {here.get('governor') or 'not readable'}",
    )


def _threads_per_core(here: dict[str, Any]) -> str:
    """Cores as Linux counts them are hardware threads, and a hypervisor may hide which share a core."""
    each = here.get("threads_per_core")
    return "" if each is None else f" ({each} to a physical core, as the system says)"


def _clocks(gpu: dict[str, Any]) -> str:
    """One GPU's samples over a part: median and range of each number, and what lowered its clocks."""
    units = {"clocks.sm": "MHz SM", "clocks.mem": "MHz memory", "power.draw": "W", "temperature.gpu": "°C"}
    shown = [
        f"{found['median']:g} {unit} ({found['least']:g} to {found['most']:g})"
        for name, unit in units.items()
        if (found := gpu.get(name))
    ]
    lowered = f"lowered by {', '.join(gpu['reasons'])}" if gpu["reasons"] else "never lowered"
    idle = f", {gpu['idle']} more of an idle GPU left out" if gpu.get("idle") else ""
    count = gpu["samples"] - gpu.get("idle", 0)
    clocks = f"clocks {lowered}" if count else "never at work"
    return f"{', '.join(shown) or 'no numbers'}; {clocks}; {count} samples{idle}"


def _attention(one: dict[str, Any]) -> str:
    """What eager's attention runs in one phase at one batch, and how far it is from the reference."""
    parity = one["parity"]
    backends = " and ".join(one["backends"]) or "not torch's"
    checked = (
        one["unchecked"]
        if parity is None
        else f"{parity['max_abs_logit_difference']:.1e} from the reference, {parity['tolerance']:.0e} allowed"
    )
    return f"{one['phase']} at batch {one['batch']}: {backends} ({checked})"


def _left_out(run: SweepRun) -> dict[str, dict[str, Any]]:
    """Modes that were served and not measured, because they run as another one that was."""
    statuses = {status["mode"]: status for status in run.modes or run.modes_before}
    doubled = doubles(statuses, str(run.engine.get("device", "cpu")))
    measured = run.plan.modes
    return {
        mode: statuses[mode] for mode, other in doubled.items() if mode not in measured and other in measured
    }


def _memory(engine: dict[str, Any]) -> str:
    """The engine's memory by its own names; counts of retries and failures are not bytes."""
    sizes = {name: value for name, value in (engine.get("memory") or {}).items() if value is not None}
    if resident := engine.get("peak_resident_bytes"):
        sizes["peak resident"] = resident
    counts = {name: sizes.pop(name) for name in ("alloc_retries", "ooms") if name in sizes}
    parts = [f"{name.replace('_', ' ')} {formatting.size(value)}" for name, value in sizes.items()]
    parts += [f"{name.replace('_', ' ')} {value}" for name, value in counts.items()]
    return ", ".join(parts) or "not recorded"


def reproduce(run: SweepRun) -> list[str]:
    """Commands that measure the same again, with the variables that the service was started with."""
    plan = ["--plan", PLAN_FILE] if run.plan_from_file else ["--preset", run.plan.preset]
    command = ["launchbound", "sweep", *plan, "--seed", str(run.plan.seed)]
    for name in ("model", "device", "dtype", "modes", "batch_sizes", "slo", "advice"):
        if value := run.settings.get(name) or run.overrides.get(name):
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            if name == "modes" and AUTO in run.plan.modes and AUTO not in text.split(","):
                text += f",{AUTO}"  # no mode that a service is started with
            command += [f"--{name.replace('_', '-')}", text]
    if (workers := run.settings.get("workers", 1)) > 1:
        command += ["--workers", str(workers)]
    variables = (run.service or {}).get("environment", {})
    assigned = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    commit = run.environment.get("commit")
    lines = [f"git checkout {commit}"] if commit else []
    return [*lines, " ".join([*assigned, shlex.join(command)])]
