"""Load as files for other programs: `load.csv` per open-loop cell, `knees.csv` per mode and conditions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import polars as pl

from loadtests.report.csv_tables import write_csv
from loadtests.report.load import sentences
from loadtests.report.load.knees import QUANTILES, LoadCell, LoadFindings
from loadtests.report.load.visits import SECONDS
from service.statistics.intervals import Interval
from service.statistics.knee import BoundedEstimate

LOAD_FILE = "load.csv"
KNEES_FILE = "knees.csv"


def write_load(findings: LoadFindings) -> None:
    """Write both files into the results folder, where it has open-loop cells."""
    tables = {LOAD_FILE: list(load_records(findings)), KNEES_FILE: list(knee_records(findings))}
    for name, records in tables.items():
        if records:
            write_csv(findings.results.folder / name, pl.DataFrame(records, infer_schema_length=None))


def load_records(findings: LoadFindings) -> Iterator[dict[str, Any]]:
    """One record per open-loop cell; seconds are seconds, null is not known."""
    for one in findings.cells:
        yield {
            "cell": one.cell.name,
            "mode": one.cell.mode,
            "batch_size": one.cell.batch_size,
            "arrivals": one.cell.arrivals,
            "offered_per_second": one.rate,
            "rounds": len(one.visits),
            "sent": one.sent,
            "rejected": one.rejected,
            "failed": one.failed,
            "cut_visits": one.cut,
            **_spread("served_per_second", one.served_rate),
            **_spread("goodput_per_second", one.goodput),
            **_spread("attainment", one.attainment),
            **_spread("effective_batch", one.effective_batch),
            **_latencies(one),
            **_waits(one),
        }


def knee_records(findings: LoadFindings) -> Iterator[dict[str, Any]]:
    """One record per mode and conditions. The knee lies in [knee_least, knee_most]; null: no bound."""
    slo = findings.criterion.slo
    for group in findings.groups:
        batch, prompts, tokens, arrivals = group.ladder
        for one in group.knees:
            yield {
                "mode": one.mode,
                "batch_size": batch,
                "prompt_set": prompts,
                "new_tokens": tokens,
                "arrivals": arrivals,
                "e2e_seconds": slo.e2e_seconds if slo else None,
                "ttft_seconds": slo.ttft_seconds if slo else None,
                "tpot_seconds": slo.tpot_seconds if slo else None,
                "least_share": findings.criterion.least_share,
                "criterion": "saturation" if slo is None else "slo",
                "rounds": one.rounds,
                "visits_too_short_below": one.too_short,
                **_bounded("knee", one.estimate),
                "reference": sentences.reference(group),
                **_bounded("ratio", group.ratio(sentences.reference(group), one.mode)),
            }


def _latencies(one: LoadCell) -> dict[str, float | None]:
    names = [(kind, share) for kind in SECONDS for share in QUANTILES]
    spreads = [
        _spread(f"{kind}_p{100 * share:.0f}_seconds", one.quantiles[kind][share]) for kind, share in names
    ]
    return {name: value for spread in spreads for name, value in spread.items()}


def _waits(one: LoadCell) -> dict[str, float | None]:
    waits = one.queue_waits
    return {
        **_spread("queue_mean_seconds", waits.measured if waits else None),
        **_spread("queue_replayed_seconds", waits.replayed if waits else None),
        **_spread("queue_pollaczek_khinchine_seconds", waits.steady if waits else None),
    }


def _spread(name: str, interval: Interval | None) -> dict[str, float | None]:
    ends = (None, None, None) if interval is None else (interval.value, interval.low, interval.high)
    return {key: _finite(end) for key, end in zip((name, f"{name}_low", f"{name}_high"), ends, strict=True)}


def _bounded(name: str, estimate: BoundedEstimate | None) -> dict[str, float | None]:
    """Open ends and sides without a bound are null, and all where the interval excludes nothing."""
    keys = (f"{name}_least", f"{name}_most", f"{name}_low", f"{name}_high")
    if estimate is None or not estimate.tells:
        return dict.fromkeys(keys)
    ends = (estimate.value.low, estimate.value.high, estimate.low, estimate.high)
    return {key: _finite(end) if end else None for key, end in zip(keys, ends, strict=True)}


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value
