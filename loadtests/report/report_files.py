"""`report.html` (one file, offline), `report.md`, and the CSV tables, written from a results folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadtests.plan.cells import Slo
from loadtests.report import load_section, plots, wording
from loadtests.report.csv_files import write_tables
from loadtests.report.findings import Findings
from loadtests.report.page import Plot, write_page
from loadtests.report.results import read_results
from loadtests.report.sections import auto_numbers, comparable, context
from loadtests.report.summaries import Count, Requests, Verdict
from loadtests.report.surroundings import wall_time
from loadtests.run.validation import write_validation
from service.statistics.choice import CONFIDENCE

REPORT_FILE = "report.html"


def make_report(folder: Path | str, peers: Path | None = None, slo: Slo | None = None) -> dict[str, Any]:
    """Write the report's files into `folder`; returns the headline.

    These are `report.html`, `report.md`, `cells.csv`, `summary.csv`, `advice.json` and `validation.json`,
    whose gates are checked anew; with open-loop cells also `load.csv` and `knees.csv`, judged by `slo` in
    place of the plan's. `peers` is a folder of `launchbound peers`, whose comparison the report then shows.
    Raises RowsError where the folder holds no results, or none that succeeded, and PeersError where `peers`
    cannot be read or is of another model or processor.
    """
    return write_report(Findings(read_results(folder), slo), peers)


def write_report(findings: Findings, peers: Path | None = None) -> dict[str, Any]:
    """As `make_report`, of results that have been read already."""
    compared = None if peers is None else comparable(peers, findings.results.run)
    write_tables(findings)
    write_advice(findings)
    write_validation(findings.results.folder, findings.results.gates)
    write_page(findings.results.folder, REPORT_FILE, context(findings, list(all_plots(findings)), compared))
    return headline(findings)


def all_plots(findings: Findings) -> Iterator[Plot]:
    """All plots that have data, in the page's order."""
    for plot in (
        plots.speedups,
        plots.parts,
        plots.latency,
        plots.throughput,
        plots.index_map,
        plots.trade_off,
        load_section.goodput,
        load_section.saturation,
        load_section.concurrency,
        plots.timeline,
    ):
        if made := plot(findings):
            yield made


ADVICE_FILE = "advice.json"
FORMAT_VERSION = 2


def write_advice(findings: Findings) -> None:
    """Write it into the results folder, for a sweep that is not valid too: it says so."""
    text = msgspec.json.format(msgspec.json.encode(advice(findings)), indent=2)
    (findings.results.folder / ADVICE_FILE).write_bytes(text + b"\n")


def advice(findings: Findings) -> dict[str, Any]:
    """The document: what was swept, and the choice of each main batch size; None is what is not recorded."""
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
        if shipped is None or choice is None:
            continue
        reasons = [wording.gain(verdict), *wording.certainty(verdict)]
        speedup = shipped.against_plain.speedup if shipped.against_plain else None
        yield {
            "batch_size": verdict.batch_size,
            "mode": shipped.cell.mode,
            "effective": shipped.effective,
            "state": choice.state,
            "beats_baseline": choice.beats_baseline,
            "reason": "; ".join(reasons),
            "speedup": None
            if speedup is None
            else {
                "vs": verdict.plain.cell.mode,
                "ratio": speedup.value,
                "low": speedup.low,
                "high": speedup.high,
            },
        }


def headline(findings: Findings) -> dict[str, Any]:
    """A sentence, its validity, and the choice per batch size; None is what is unknown."""
    crossing = findings.crossover
    return {
        "text": wording.headline(findings),
        "valid": not findings.results.failed_gates,
        "provisional": bool(wording.provisional(findings.main)),
        "failed_gates": [gate.name for gate in findings.results.failed_gates],
        "measured_share": wall_time(findings.results).measured_share,
        "split_proved": findings.proof.proved,
        "left_out": findings.left_out,
        "crossover_batch": crossing.typical.batch if crossing.typical.where == "at" else None,
        "batches": [_batch(verdict, findings) for verdict in findings.main],
    }


def _batch(verdict: Verdict, findings: Findings) -> dict[str, Any]:
    choice, shipped, decode = verdict.choice, verdict.shipped, verdict.baseline.decode
    plain, eager = (shipped.against_plain, shipped.comparison) if shipped else (None, None)
    back = shipped.payback if shipped else None
    return {
        "batch_size": verdict.batch_size,
        "ship": choice.ship if choice else None,
        "effective": shipped.effective if shipped else None,
        "fastest": choice.fastest if choice else None,
        "baseline": choice.baseline if choice else None,
        "state": choice.state if choice else "not resolved",
        "equivalent": list(choice.alike) if choice else None,
        "unresolved": list(choice.unresolved) if choice else None,
        "rounds_needed": choice.rounds_needed if choice else None,
        "speedup": msgspec.to_builtins(plain.speedup) if plain else None,
        "speedup_over_eager": msgspec.to_builtins(eager.speedup) if eager else None,
        "auto": auto_numbers(verdict, findings),
        "bound": decode.bound,
        "headroom": decode.headroom.value if decode.headroom else None,
        "device_bound_index": decode.index,
        "device_bound_index_interval": [decode.interval.low, decode.interval.high]
        if decode.interval
        else None,
        "payback_requests": _typical(back.requests if back else None),
        "cold_payback_requests": _typical(back.cold_requests if back else None),
    }


def _typical(requests: Requests | None) -> int | None:
    return requests.typical if isinstance(requests, Count) else None
