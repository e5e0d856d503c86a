"""`advice.json`: the mode to ship by batch size, for a service that follows it (`serve --advice FOLDER`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from loadtests.report import wording
from loadtests.report.verdict import Findings

ADVICE_FILE = "advice.json"
FORMAT_VERSION = 1


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
        "confidence": findings.confidence,
        "batches": list(_batches(findings)),
    }


def _batches(findings: Findings) -> Iterator[dict[str, Any]]:
    """None for a batch size whose rounds were too few to decide."""
    for verdict in findings.main:
        shipped = verdict.shipped
        if shipped is None:
            continue
        reasons = [wording.gain(verdict), wording.tie(verdict, findings.confidence)]
        speedup = shipped.comparison.speedup if shipped.comparison else None
        yield {
            "batch_size": verdict.batch_size,
            "mode": shipped.cell.mode,
            "effective": shipped.effective,
            "reason": "; ".join(reason.rstrip(".") for reason in reasons if reason),
            "speedup": None
            if speedup is None
            else {
                "vs": verdict.baseline.cell.mode,
                "ratio": speedup.value,
                "low": speedup.low,
                "high": speedup.high,
            },
        }
