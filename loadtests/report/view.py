"""The contents of the report's page and of its Markdown version, as plain values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report import formatting
from loadtests.report.cards import card, table
from loadtests.report.comparison import slowest_over_fastest
from loadtests.report.machine_selftest import find_selftest, selftest_line
from loadtests.report.plots_parts import smallest_floor
from loadtests.report.plotting import colour
from loadtests.report.verdict import Findings
from loadtests.run.environment import cpu_model
from loadtests.run.run_file import SweepRun

COLD = (
    " Floors are measured with cold caches, as in a real step: the misses cost all modes about the same, "
    "which lowers this ratio (docs/method.md, “On a CPU”)."
)


def view(findings: Findings) -> dict[str, Any]:
    """Everything the templates need, save the plots."""
    results = findings.results
    run = results.run
    gates = results.gates
    proof = find_selftest(results.folder, run)
    return {
        "headline": formatting.headline(findings),
        "crossing": formatting.crossing(findings.crossover, findings.upper_estimate) + ".",
        "failed": results.failed_gates,
        "warnings": [gate for gate in gates if gate.warning and gate.passed is False],
        "gates": gates,
        "passed_count": sum(gate.passed is True and not gate.warning for gate in gates),
        "not_applicable": [gate.name for gate in gates if gate.passed is None],
        "subject": subject(run),
        "cards": [card(verdict, run) for verdict in findings.main],
        "other_cards": [card(verdict, run) for verdict in findings.others],
        "tables": [table(verdict) for verdict in findings.verdicts],
        "ladder": list(ladder(findings)),
        "modes": [mode_status(run, mode) for mode in run.plan.modes],
        "environment": list(environment(run)),
        "selftest": selftest_line(proof),
        "selftest_passed": proof is not None and proof["outcome"] == "passed",
        "reproduce": reproduce(run),
        "device": results.device,
        "upper_estimate": findings.upper_estimate,
        "run": run,
        "minimum_rounds": MINIMUM_ROUNDS,
        "baseline": BASELINE,
        "comparisons": sum(s.comparison is not None and not s.cell.control for s in findings.summaries),
    }


def subject(run: SweepRun) -> list[str]:
    """What was measured where, in a few short phrases."""
    engine = run.engine
    device = engine.get("device_name") if engine.get("device") == "cuda" else run.environment.get("cpu")
    threads = engine.get("threads")
    phrases = [
        f"model {engine.get('model', 'unknown')}",
        str(engine.get("dtype", "")),
        str(device or cpu_model()),
        f"{threads} thread{'s' if threads != 1 else ''}" if engine.get("device") == "cpu" else "",
        f"torch {engine.get('torch', 'unknown')}",
        run.started[:10],
        f"commit {run.environment.get('commit') or 'unknown'}"
        + ("+" if run.environment.get("dirty") else ""),
    ]
    return [phrase for phrase in phrases if phrase]


def ladder(findings: Findings) -> Iterator[str]:
    """Whether the modes behave as expected: floors fall, and modes converge as batches grow."""
    run = findings.results.run
    known = {mode: floor for mode in run.plan.modes if (floor := smallest_floor(run.mode(mode)))}
    if len(known) > 1:
        falls = _falls(list(known.values()))
        floors = [f"{mode} {formatting.microseconds(floor['seconds'])}" for mode, floor in known.items()]
        yield f"The dispatch floor {falls} down the ladder: {', '.join(floors)}."
    if BASELINE in known and "compiled" in known:
        ratio = formatting.times(known[BASELINE]["seconds"] / known["compiled"]["seconds"])
        cold = COLD if findings.results.device == "cpu" else ""
        yield f"{BASELINE}'s floor is {ratio} that of compiled.{cold}"
    if len(findings.main) > 1:
        ends = (findings.main[0], findings.main[-1])
        spreads = [
            slowest_over_fastest({s.cell.mode: findings.results.medians(s.cell.name) for s in end.modes})
            for end in ends
        ]
        verb = "converge" if spreads[1] < spreads[0] else "do NOT converge"
        yield (
            f"The modes {verb} as the batch grows: the slowest takes {formatting.times(spreads[0])} the"
            f" fastest's time at batch {ends[0].batch_size}, {formatting.times(spreads[1])}"
            f" at batch {ends[1].batch_size}."
        )


def _falls(floors: Sequence[Mapping[str, float]]) -> str:
    """How floors change from mode to mode: falling beyond their 95 % intervals, in value only, or not."""
    steps = list(pairwise(floors))
    if all(upper["low"] > lower["high"] for upper, lower in steps):
        return "falls strictly"
    if all(upper["seconds"] > lower["seconds"] for upper, lower in steps):
        return "falls, within the intervals' reach,"
    return "does NOT fall"


def mode_status(run: SweepRun, name: str) -> dict[str, Any]:
    """Parity, warm-up and effective form of one mode, as text."""
    status = run.mode(name)
    parity = status.get("parity")
    compilations = status.get("compile_seconds") or []
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
        "compilations": len(compilations),
        "compile_seconds": f"{formatting.significant(sum(compilations))} s" if compilations else "–",
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


def environment(run: SweepRun) -> Iterator[tuple[str, str]]:
    """The measurement's environment, as label and text."""
    engine = run.engine
    here = run.environment
    shape = f"{engine.get('layers')} layers × {engine.get('width')}, context {engine.get('context')}"
    yield "model", f"{engine.get('model')}, {engine.get('parameters', 0):,} parameters, {shape}"
    yield "model hash", str(engine.get("model_hash"))
    yield "device", f"{engine.get('device_name') or engine.get('device')}, {engine.get('dtype')}"
    if engine.get("no_twin") and engine.get("device") == "cpu":
        yield "dispatch", f"not measured, because there is no hollow twin: {engine['no_twin']}"
    threads = engine.get("threads")
    share = run.client.cpu_share
    yield "engine", f"{threads} thread{'s' if threads != 1 else ''} on {_cores(engine.get('cpus'))}"
    used = "" if share is None else f", {share:.0%} of one used"
    yield "load generator", f"on {_cores(run.client.cpus)}{used}"
    yield "torch", f"{engine.get('torch')}" + (f", CUDA {engine['cuda']}" if engine.get("cuda") else "")
    yield "CPU", f"{here.get('cpu')}, {here.get('cores')} cores"
    for gpu in here.get("gpus") or []:
        yield "GPU", ", ".join(f"{name} {value}" for name, value in gpu.items())
    yield "system", f"{here.get('distribution')}, {here.get('system')}, Python {here.get('python')}"
    yield (
        "clock",
        f"{here.get('cpu_megahertz') or 'unknown'} MHz, governor {here.get('governor') or 'not readable'}",
    )
    yield "load average", ", ".join(f"{load:.2f}" for load in here.get("load_average") or [])
    dirty = {True: " with uncommitted changes", False: ", clean", None: ""}[here.get("dirty")]
    yield "commit", f"{here.get('commit') or 'unknown'}{dirty}"
    yield "run", f"{run.run}, {run.started} to {run.ended or 'unknown'}"
    yield "batch buckets", f"{engine.get('batch_buckets')}, prefill chunk {engine.get('prefill_chunk')}"


def _cores(cpus: list[int] | None) -> str:
    if not cpus:
        return "any core"
    return f"core{'s' if len(cpus) != 1 else ''} {', '.join(map(str, cpus))}"


def reproduce(run: SweepRun) -> list[str]:
    """Commands that measure the same again."""
    command = ["launchbound", "sweep", "--preset", run.plan.preset, "--seed", str(run.plan.seed)]
    for name in ("model", "device", "dtype", "modes", "batch_sizes"):
        if value := run.settings.get(name):
            command += [f"--{name.replace('_', '-')}", str(value)]
    commit = run.environment.get("commit")
    return ([f"git checkout {commit}"] if commit else []) + [shlex.join(command)]
