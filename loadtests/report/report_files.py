"""`report.html` (one file, offline), `report.md`, the CSV tables, and what a terminal shows of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from rich.console import Console
from rich.text import Text as Styled

from loadtests.report import load_section, plots, wording
from loadtests.report.findings import Findings
from loadtests.report.page import Plot, print_table, write_page
from loadtests.report.sections import answer, context, mode_tables
from loadtests.report.summaries import Count, PhaseMeans, Requests, Verdict
from loadtests.run.gates import write_validation
from service.statistics.choice import CONFIDENCE
from service.statistics.intervals import Interval

REPORT_FILE = "report.html"
FORMULA = r"^[=+\-@\t\r\n]"
"""What begins a text that a spreadsheet takes for a formula, and runs."""

CELLS_FILE = "cells.csv"
SUMMARY_FILE = "summary.csv"


def write_report(findings: Findings) -> dict[str, Any]:
    """Write the report's files into the results folder; returns the headline.

    These are `report.html`, `report.md`, `cells.csv`, `summary.csv`, `advice.json` and `validation.json`.
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
    """Of a module with sizes all but the one over time are of the headline's, and say so."""
    size = findings.main[0].baseline.cell.size if findings.main else None
    found = [made for plot in PLOTS if (made := plot(findings))]
    if size is None:
        return found
    said = f"Of size {size}."
    return [one if one.id == "timeline" else replace(one, caption=f"{said} {one.caption}") for one in found]


def write_tables(findings: Findings) -> None:
    """Write `cells.csv` and `summary.csv` into the results folder."""
    folder = findings.results.folder
    write_csv(folder / CELLS_FILE, findings.results.rounds)
    records = list(summary_records(findings))
    write_csv(folder / SUMMARY_FILE, pl.DataFrame(records, infer_schema_length=None))


def write_csv(path: Path, table: pl.DataFrame) -> None:
    """Write `table`, with an apostrophe before what would be a FORMULA; numbers stay numbers."""
    texts = pl.col(pl.String).str.replace(FORMULA, "'$0")
    # Written by Python: the OSError that polars raises on a full disk has no errno.
    path.write_text(table.with_columns(texts).write_csv(), encoding="utf-8")


def summary_records(findings: Findings) -> Iterator[dict[str, Any]]:
    for summary in findings.summaries:
        comparison, plain = summary.comparison, summary.against_plain
        back, cell, main, words = summary.payback, summary.cell, summary.main, findings.words
        first = _spread("time_to_first_token_seconds", summary.first_token) if words.has_tokens else {}
        yield {
            "cell": cell.name,
            "mode": cell.mode,
            "effective_mode": summary.effective,
            "control": cell.control,
            **cell.work,
            **{name: getattr(cell, name) for name in ("concurrency", "load", "rate")},
            "requests": summary.requests,
            "rounds": summary.latency.samples,
            **_spread(words.seconds, summary.latency),
            words.seconds.replace("_", "_p95_"): summary.latency_p95_seconds,
            **_spread(words.rate, summary.throughput),
            **{f"{part}_seconds_mean": value for part, value in summary.parts.items()},
            "total_seconds_mean": summary.total_seconds,
            "outside_seconds_mean": summary.outside_seconds,
            "mean_less_typical_seconds": summary.skew_seconds,
            **first,
            **{name: value for phase in summary.phases for name, value in _phase(phase).items()},
            "device_bound_index": main.index,
            "bound": main.bound,
            **_spread("headroom", main.headroom),
            "disturbed": summary.disturbed,
            **_spread("speedup", comparison.speedup if comparison else None),
            "word": comparison and comparison.word,
            **_spread("speedup_over_plain", plain.speedup if plain else None),
            "word_against_plain": plain and plain.word,
            **_count(f"payback_{words.timed}s", back.requests),
            **_count(f"cold_payback_{words.timed}s", back.cold_requests),
            **_count(f"all_payback_{words.timed}s", back.all_requests),
            **_count(f"all_cold_payback_{words.timed}s", back.all_cold_requests),
            "payback_reference": back.reference,
        }


def _phase(phase: PhaseMeans) -> dict[str, float | None]:
    parts = ("wall", "dispatch", "dispatch_low", "dispatch_high", "kernel", "sync_wait")
    share = phase.interval
    return {
        **{f"{phase.name}_{part}_seconds_mean": getattr(phase, f"{part}_seconds") for part in parts},
        f"{phase.name}_minor_faults_mean": phase.minor_faults,
        f"{phase.name}_index": phase.index,
        f"{phase.name}_index_low": share and share.low,
        f"{phase.name}_index_high": share and share.high,
    }


def _count(name: str, requests: Requests) -> dict[str, int | None]:
    ends = requests if isinstance(requests, Count) else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def _spread(name: str, interval: Interval | None) -> dict[str, float | None]:
    ends = (interval.value, interval.low, interval.high) if interval else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


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


def _batch(verdict: Verdict) -> dict[str, Any]:
    """What is of a choice is None where there were too few rounds for one."""
    choice, shipped, main = verdict.choice, verdict.shipped, verdict.baseline.main
    timed = verdict.baseline.words.timed
    plain, eager = (shipped.against_plain, shipped.comparison) if shipped else (None, None)
    return {
        "effective": shipped and shipped.effective,
        "fastest": choice and choice.fastest,
        "baseline": choice and choice.baseline,
        "equivalent": choice and list(choice.alike),
        "unresolved": choice and list(choice.unresolved),
        "rounds_needed": choice and choice.rounds_needed,
        "speedup": plain and msgspec.to_builtins(plain.speedup),
        "speedup_over_eager": eager and msgspec.to_builtins(eager.speedup),
        f"payback_{timed}s": shipped and _typical(shipped.payback.requests),
        f"cold_payback_{timed}s": shipped and _typical(shipped.payback.cold_requests),
        f"all_payback_{timed}s": shipped and _typical(shipped.payback.all_requests),
        f"all_cold_payback_{timed}s": shipped and _typical(shipped.payback.all_cold_requests),
        "batch_size": verdict.batch_size,
        "ship": choice and choice.ship,
        "state": choice.state if choice else "not resolved",
        "bound": main.bound,
        "headroom": main.headroom.value if main.headroom else None,
        "device_bound_index": main.index,
        "device_bound_index_interval": main.interval and [main.interval.low, main.interval.high],
    }


def _typical(requests: Requests) -> int | None:
    return requests.typical if isinstance(requests, Count) else None


# The results as a terminal shows them: failed gates first, the tables, then the answer and its reasons

LEFT_OUT = {
    "first token", "requests to pay back, this start", "calls to pay back, this start", "from an empty cache",
}  # fmt: skip
"""Columns that a narrow terminal has no room for."""


def print_findings(findings: Findings, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(Styled(text, style=style), soft_wrap=True)

    for gate in findings.results.failed_gates:
        say(f"NOT VALID  {gate.name}: {gate.detail}", "bold red")
    for gate in findings.results.warnings:
        say(f"warning  {gate.name}: {gate.detail}", "yellow")
    for verdict in findings.verdicts:
        print_table(next(mode_tables(verdict, findings)), console, LEFT_OUT)
        say(f"  → {_conclusion(verdict)}\n", "bold")
    if section := load_section.load_section(findings.load):
        for table in section.tables:
            if table.title:  # without one it has details of the table before it
                print_table(table, console)
        say(f"{section.note}\n")
    if findings.main:  # the note is about bars, which only the page has
        print_table(replace(answer(findings.main, findings), note=""), console)
    say(wording.headline(findings), "bold")
    for _, sentence in wording.reasons(findings):
        say(sentence)
    say(wording.crossing(findings))


def _conclusion(verdict: Verdict) -> str:
    if verdict.choice is None:
        return f"not resolved: {wording.gain(verdict)}"
    found = f"{verdict.choice.state}: {verdict.choice.ship}, {wording.gain(verdict)}"
    return "; ".join([found, *wording.certainty(verdict)])
