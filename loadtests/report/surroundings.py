"""Where and how long a run was measured, how its modes came up, and how to measure it again."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from loadtests.report.formatting import cores, milliseconds, significant, size, whole
from loadtests.report.results import Results
from loadtests.report.summaries import REMEDY
from loadtests.run.run_file import PLAN_FILE, Part, SweepRun
from service.modes import AUTO, doubles


def subject(run: SweepRun) -> list[str]:
    """What was measured where, in a few short phrases."""
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


def mode_status(run: SweepRun, name: str) -> dict[str, str]:
    """Parity, warm-up and effective form of one mode, as text."""
    status = run.mode(name)
    parity, warmup = status.get("parity"), status.get("warmup_seconds")
    seconds = [c["seconds"] for c in status.get("compilations") or []] or status.get("compile_seconds")
    found = {
        "mode": name,
        "effective": status.get("effective") or "unknown",
        "reason": status.get("reason") or "",
        "removes": status.get("removes") or "",
        "warmup": f"{significant(warmup)} s" if warmup else "–",
        "cache": status.get("cache") or "–",
        "compiled": f"{len(seconds)} in {significant(sum(seconds))} s" if seconds else "–",
        "cold_start": _cold_start(status),
    }
    if not parity:
        return found | {"parity": "not checked", "difference": "–", "tokens": "–"}
    return found | {
        "parity": "in parity" if parity["passed"] else "OUT OF PARITY",
        "difference": f"{parity['max_abs_logit_difference']:.1e} of {parity['tolerance']:.0e} allowed",
        "tokens": f"{parity['differing_tokens']} of {parity['positions']} differ, "
        f"{parity['near_ties']} near ties",
    }


def _cold_start(status: dict[str, Any]) -> str:
    """What all compilations of a mode take with an empty compile cache."""
    compilations = status.get("compilations") or []
    if not compilations:
        return "unknown" if status.get("compile_seconds") else "–"
    seconds = [c["seconds"] if c["cold"] else c.get("cold_seconds") for c in compilations]
    return f"unknown: {REMEDY}" if None in seconds else f"{significant(sum(seconds))} s"


def environment(results: Results) -> Iterator[tuple[str, str]]:
    """The measurement's environment and the load generator's, as label and text."""
    run = results.run
    yield from _of_engine(run)
    yield from _of_machine(run)
    yield from _of_run(run)
    client, workers = run.client, run.settings.get("workers", 1)
    processes = f"{workers} load processes and their master, all" if workers > 1 else "one process"
    yield "load generator", f"{processes} on {cores(client.cpus)}"
    share = "not known" if client.cpu_share is None else f"{client.cpu_share:.0%} of one core"
    yield "CPU of the load generator", f"{share}, of its busiest process or core" if workers > 1 else share
    yield "schedule delay", _schedule_delay(results)
    yield "measured requests", wall_time(results).text


def _of_engine(run: SweepRun) -> Iterator[tuple[str, str]]:
    engine = run.engine
    shape = f"{engine.get('layers')} layers × {engine.get('width')}, context {engine.get('context')}"
    yield "model", f"{engine.get('model')}, {engine.get('parameters', 0):,} parameters, {shape}"
    yield "model hash", str(engine.get("model_hash"))
    yield "device", f"{engine.get('device_name') or engine.get('device')}, {engine.get('dtype')}"
    if linears := engine.get("linears"):
        yield "linear weights", f"{linears['layout']}: {linears['reason']}"
    if attention := engine.get("attention"):
        yield "attention", "; ".join(map(_attention, attention))
    for mode, status in _left_out(run).items():
        yield "left out", f"{mode}, which runs as {status['effective']} here: {status['reason']}"
    if engine.get("no_samples") and engine.get("device") == "cpu":
        yield "samples", f"none, so no step is split: {engine['no_samples']}"
    yield "engine", f"{_threads(engine)} on {cores(engine.get('cpus'))}"
    yield "torch", f"{engine.get('torch')}" + (f", CUDA {engine['cuda']}" if engine.get("cuda") else "")
    if blas := engine.get("blas"):
        yield "BLAS", blas
    yield "memory", _memory(engine)
    yield "context", f"{whole(engine.get('context'))} cache positions per sequence"
    if (batching := engine.get("batching", "off")) != "off":
        window = engine.get("batch_window_ms")
        yield "requests merged", batching if window is None else f"{batching} of {window:g} ms"
    yield "batch buckets", f"{engine.get('batch_buckets')}, prefill chunk {engine.get('prefill_chunk')}"


def _attention(one: dict[str, Any]) -> str:
    """What eager's attention runs in one phase at one batch, and how far it is from the reference."""
    parity = one["parity"]
    checked = (
        one["unchecked"]
        if parity is None
        else f"{parity['max_abs_logit_difference']:.1e} from the reference, {parity['tolerance']:.0e} allowed"
    )
    backends = " and ".join(one["backends"]) or "not torch's"
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
    found = {name: value for name, value in (engine.get("memory") or {}).items() if value is not None}
    if resident := engine.get("peak_resident_bytes"):
        found["peak resident"] = resident
    counts = ("alloc_retries", "ooms")
    told = [
        f"{name.replace('_', ' ')} {value if name in counts else size(value)}"
        for name, value in found.items()
    ]
    return ", ".join(told) or "not recorded"


def _of_machine(run: SweepRun) -> Iterator[tuple[str, str]]:
    """The service's machine; an older service does not say it, and ours would be the load generator's."""
    here = run.environment
    if not here:
        yield "machine", "unknown: the service is of a version that does not say"
    else:
        each = here.get("threads_per_core")
        threads = "" if each is None else f" ({each} to a physical core, as the system says)"
        yield "CPU", f"{here.get('cpu')}, {here.get('cores')} cores{threads}"
        if features := here.get("cpu_features"):
            yield "instruction sets", features
        for gpu in here.get("gpus") or []:
            yield "GPU", ", ".join(f"{name} {value}" for name, value in gpu.items())
        yield "system", f"{here.get('distribution')}, {here.get('system')}, Python {here.get('python')}"
        clock, governor = here.get("cpu_megahertz") or "unknown", here.get("governor") or "not readable"
        yield "clock", f"{clock} MHz, governor {governor}"
    for part in run.parts:
        for gpu in part.gpus:
            yield "GPU while measured", _clocks(gpu)
    load = ", ".join(f"{load:.2f}" for load in here.get("load_average") or [])
    yield "load average", load or "unknown"


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


def _of_run(run: SweepRun) -> Iterator[tuple[str, str]]:
    dirty = {True: " with uncommitted changes", False: ", clean", None: ""}[run.environment.get("dirty")]
    yield "commit", f"{run.environment.get('commit') or 'unknown'}{dirty}"
    parts = f", in {len(run.parts)} parts" if len(run.parts) > 1 else ""
    yield "run", f"{run.run}, {run.started} to {run.ended or 'unknown'}{parts}"
    if run.overrides:
        yield "options over the plan", ", ".join(f"{name} {value}" for name, value in run.overrides.items())


def _schedule_delay(results: Results) -> str:
    """How late open-loop requests left: quantiles of start − due time over all that were measured."""
    opened = pl.col("load").is_not_null() | pl.col("cell").is_in(list(results.run.client.rates))
    late = results.rows.filter(opened & (pl.col("stage") == "measure"))
    if late.is_empty():
        return "not measured: no request of this plan had a due time (an open loop's have)"
    delay = late["start"] - late["intended_start"]
    found = {
        "p50": delay.quantile(0.5, "linear"),
        "p99": delay.quantile(0.99, "linear"),
        "max": delay.quantile(1.0, "linear"),
    }
    quantiles = ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in found.items())
    return f"{quantiles}, of {late.height:,} open-loop requests"


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


_MEASURED = "measure"
_OF_A_BLOCK = (_MEASURED, "sample")
"""Stages that take turns in a block: requests that are timed, and one whose steps are sampled."""

LEAST_SHOWN = 0.005
"""A smaller share of the time is left out of the text."""

_INSTANTS = (
    *("cell", "round", "part", "intended_start", "start"),
    (pl.col("start") + pl.col("latency_seconds")).alias("end"),
    (pl.col("load").is_not_null() | pl.col("rate").is_not_null()).alias("open_loop"),
)

_Spans = dict[str, tuple[float, float]]
"""By stage the first start and the last answer of one part, in Unix seconds."""


@dataclass(frozen=True, slots=True)
class WallTime:
    """Seconds of a sweep, the gaps between its parts left out.

    `total`: from the service being ready to the end; where a run does not have that instant, from the first
    request to the last. Of these, in `measured` at least one measured request was under way, in `sampled`
    none but one whose steps were sampled, which is in no latency; in `idle` an open-loop block waited for its
    next arrival; `between` lies between other measured requests, `warm_up` between a part's first request and
    its first that is no warm-up. `before`: from the command's start to the service being ready.
    """

    total: float
    measured: float
    sampled: float
    idle: float
    between: float
    warm_up: float
    before: float | None

    @property
    def measured_share(self) -> float:
        """Share of `total` in which a measured request was under way."""
        return self.measured / self.total

    @property
    def text(self) -> str:
        """'55 % of 21 min 4 s with the service up; sampled requests 28 %, … . 4 min 2 s before that'."""
        named = {"sampled requests": self.sampled, "warm-up": self.warm_up}
        named |= {"waiting for arrivals": self.idle, "between requests": self.between}
        named["the rest"] = self.total - self.measured - sum(named.values())
        shares = {name: seconds / self.total for name, seconds in named.items()}
        shown = [f"{name} {_share(share)}" for name, share in shares.items() if share >= LEAST_SHOWN]
        since = "from the first request to the last" if self.before is None else "with the service up"
        text = f"{_share(self.measured_share)} of {_duration(self.total)} {since}"
        if shown:
            text += f"; {', '.join(shown)}"
        if self.before is not None:
            text += f". Until the service was ready: {_duration(self.before)}"
        return text


def wall_time(results: Results) -> WallTime:
    """Where the time of a sweep went, by its rows and the instants of its parts."""
    run = results.run
    parts = {part.number: part for part in run.parts}
    began = {part.number: part.started for part in run.parts} | {1: run.started}
    spans = _spans(results.rows)
    known = all(number in parts and parts[number].ready for number in spans)
    seconds = defaultdict[str, float](float)
    for number, of_part in spans.items():
        for name, spent in _of_part(of_part, parts[number] if known else None).items():
            seconds[name] += spent
        if known:
            seconds["before"] += _instant(parts[number].ready) - _instant(began[number])
    stages = results.rows.lazy().filter(pl.col("stage").is_in(_OF_A_BLOCK))
    rows = stages.select(*_INSTANTS)
    measured = _under_way(stages.filter(pl.col("stage") == _MEASURED).select(*_INSTANTS))
    sampled, idle = _under_way(rows) - measured, _idle(rows)
    return WallTime(
        total=seconds["total"],
        measured=measured,
        sampled=sampled,
        idle=idle,
        between=seconds[_MEASURED] - measured - sampled - idle,
        warm_up=seconds["warmup"],
        before=seconds["before"] if known else None,
    )


def _spans(rows: pl.DataFrame) -> dict[int, _Spans]:
    """By part, the spans of its stages."""
    end = (pl.col("start") + pl.col("latency_seconds")).max()
    stage = pl.col("stage").cast(pl.String).replace(dict.fromkeys(_OF_A_BLOCK, _MEASURED))
    edges = rows.lazy().group_by("part", stage).agg(pl.col("start").min(), end.alias("end")).collect()
    found: dict[int, _Spans] = {}
    for part, stage, first, last in edges.sort("part", "start").rows():
        found.setdefault(part, {})[stage] = (first, last)
    return found


def _of_part(spans: _Spans, part: Part | None) -> dict[str, float]:
    """Seconds of one part in all and by stage; `part` None: from its first request to its last."""
    first, last = min(start for start, _ in spans.values()), max(end for _, end in spans.values())
    found = {stage: end - start for stage, (start, end) in spans.items()}
    if "warmup" in spans:
        # Up to the next stage: between passes the service's counters are read.
        later = [start for stage, (start, _) in spans.items() if stage != "warmup"]
        found["warmup"] = min(later, default=spans["warmup"][1]) - spans["warmup"][0]
    if part is None:
        return found | {"total": last - first}
    # A part that was killed ended with its last answer.
    end = max(last, _instant(part.ended)) if part.ended else last
    return found | {"total": end - _instant(part.ready)}


def _under_way(rows: pl.LazyFrame) -> float:
    """Seconds in which at least one request was under way: the union of their intervals."""
    reached = pl.col("end").cum_max().shift(1)
    uncovered = pl.col("end") - pl.max_horizontal("start", reached)
    return float(rows.sort("start").select(uncovered.clip(lower_bound=0.0).sum()).collect().item())


def _idle(rows: pl.LazyFrame) -> float:
    """Seconds of open-loop blocks, from the first arrival to the last answer, with no request under way."""
    opened = rows.filter(pl.col("open_loop"))
    spans = opened.group_by("cell", "round", "part").agg(pl.col("end").max() - pl.col("intended_start").min())
    return float(spans.select(pl.col("end").sum()).collect().item()) - _under_way(opened)


def _instant(text: str | None) -> float:
    """Unix seconds of an instant of `run.json`."""
    assert text is not None
    return datetime.fromisoformat(text).timestamp()


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
