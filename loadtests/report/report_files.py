"""`report.html` (one file, offline), `report.md`, and the CSV tables, written from a results folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from loadtests.report import load_section, plots, wording
from loadtests.report.csv_files import write_tables
from loadtests.report.findings import Findings
from loadtests.report.page import Plot, write_page
from loadtests.report.sections import context
from loadtests.report.summaries import Count, Requests, Verdict
from loadtests.run.validation import write_validation
from service.statistics.choice import CONFIDENCE

REPORT_FILE = "report.html"


def write_report(findings: Findings) -> dict[str, Any]:
    """Write the report's files into the results folder; returns the headline.

    These are `report.html`, `report.md`, `cells.csv`, `summary.csv`, `advice.json` and `validation.json`;
    with open-loop cells also `load.csv` and `knees.csv`.
    """
    folder = findings.results.folder
    write_tables(findings)
    write_advice(findings)
    write_validation(folder, findings.results.gates)
    write_page(folder, REPORT_FILE, context(findings, all_plots(findings)))
    return headline(findings)


PLOTS = (
    plots.speedups, plots.parts, plots.latency, plots.throughput, plots.index_map, plots.trade_off,
    load_section.saturation, plots.timeline,
)  # fmt: skip
"""In the page's order; each is None where it has no data."""


def all_plots(findings: Findings) -> list[Plot]:
    return [made for plot in PLOTS if (made := plot(findings))]


ADVICE_FILE = "advice.json"
FORMAT_VERSION = 2


def write_advice(findings: Findings) -> None:
    """Write it into the results folder, for a sweep that is not valid too: it says so."""
    text = msgspec.json.format(msgspec.json.encode(advice(findings)), indent=2)
    (findings.results.folder / ADVICE_FILE).write_bytes(text + b"\n")


def advice(findings: Findings) -> dict[str, Any]:
    run = findings.results.run
    names = ("model", "model_hash", "device_name", "dtype")
    return {
        "format_version": FORMAT_VERSION,
        "run": run.run,
        "valid": not findings.results.failed_gates,
        **{name: run.engine.get(name) for name in names},
        "commit": run.environment.get("commit"),
        "confidence": CONFIDENCE,
        "left_out": findings.left_out,
        "batches": list(_batches(findings)),
    }


def _batches(findings: Findings) -> Iterator[dict[str, Any]]:
    """None for a batch size whose rounds were too few to decide."""
    for verdict in findings.main:
        shipped, choice = verdict.shipped, verdict.choice
        if shipped and choice:
            found = shipped.against_plain and shipped.against_plain.speedup
            ends = found and {"ratio": found.value, "low": found.low, "high": found.high}
            yield {
                "batch_size": verdict.batch_size,
                "mode": shipped.cell.mode,
                "effective": shipped.effective,
                "state": choice.state,
                "beats_baseline": choice.beats_baseline,
                "reason": "; ".join([wording.gain(verdict), *wording.certainty(verdict)]),
                "speedup": ends and {"vs": verdict.plain.cell.mode, **ends},
            }


def headline(findings: Findings) -> dict[str, Any]:
    crossing = findings.crossover
    return {
        "text": wording.headline(findings),
        "valid": not findings.results.failed_gates,
        "provisional": bool(wording.provisional(findings.main)),
        "failed_gates": [gate.name for gate in findings.results.failed_gates],
        "split_proved": findings.proof.proved,
        "left_out": findings.left_out,
        "crossover_batch": crossing.typical.batch if crossing.typical.where == "at" else None,
        "batches": list(map(_batch, findings.main)),
    }


_OF_A_CHOICE = (
    "effective", "fastest", "baseline", "equivalent", "unresolved", "rounds_needed", "speedup",
    "speedup_over_eager", "payback_requests", "cold_payback_requests",
)  # fmt: skip
"""None where there were too few rounds for one."""


def _batch(verdict: Verdict) -> dict[str, Any]:
    choice, shipped, decode = verdict.choice, verdict.shipped, verdict.baseline.decode
    found: dict[str, Any] = dict.fromkeys(_OF_A_CHOICE) | {
        "batch_size": verdict.batch_size,
        "ship": None,
        "state": "not resolved",
        "bound": decode.bound,
        "headroom": decode.headroom.value if decode.headroom else None,
        "device_bound_index": decode.index,
        "device_bound_index_interval": decode.interval and [decode.interval.low, decode.interval.high],
    }
    if choice is None or shipped is None:
        return found
    plain, eager, back = shipped.against_plain, shipped.comparison, shipped.payback
    return found | {
        "ship": choice.ship,
        "effective": shipped.effective,
        "fastest": choice.fastest,
        "baseline": choice.baseline,
        "state": choice.state,
        "equivalent": list(choice.alike),
        "unresolved": list(choice.unresolved),
        "rounds_needed": choice.rounds_needed,
        "speedup": msgspec.to_builtins(plain.speedup) if plain else None,
        "speedup_over_eager": msgspec.to_builtins(eager.speedup) if eager else None,
        "payback_requests": _typical(back.requests),
        "cold_payback_requests": _typical(back.cold_requests),
    }


def _typical(requests: Requests) -> int | None:
    return requests.typical if isinstance(requests, Count) else None
