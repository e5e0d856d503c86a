"""The answer for programs: what a sweep prints as its last line."""

from __future__ import annotations

from typing import Any

import msgspec

from loadtests.report import wording
from loadtests.report.auto_section import auto_numbers
from loadtests.report.payback import Count, Requests
from loadtests.report.proof import proof
from loadtests.report.summaries import Verdict
from loadtests.report.verdict import Findings
from loadtests.report.wall_time import wall_time


def headline(findings: Findings) -> dict[str, Any]:
    """A sentence, its validity, and the choice per batch size; None is what is unknown."""
    crossing = findings.crossover
    return {
        "text": wording.headline(findings),
        "valid": not findings.results.failed_gates,
        "provisional": bool(wording.provisional(findings.main)),
        "failed_gates": [gate.name for gate in findings.results.failed_gates],
        "measured_share": wall_time(findings.results).measured_share,
        "split_proved": proof(findings).proved,
        "crossover_batch": crossing.typical.batch if crossing.typical.where == "at" else None,
        "batches": [_batch(verdict, findings) for verdict in findings.main],
    }


def _batch(verdict: Verdict, findings: Findings) -> dict[str, Any]:
    choice, shipped, decode = verdict.choice, verdict.shipped, verdict.baseline.decode
    comparison = shipped.comparison if shipped else None
    back = shipped.payback if shipped else None
    return {
        "batch_size": verdict.batch_size,
        "ship": choice.ship if choice else None,
        "effective": shipped.effective if shipped else None,
        "fastest": choice.fastest if choice else None,
        "tied": list(choice.tied) if choice else None,
        "gives_up_at_most": choice.at_most - 1 if choice and choice.at_most is not None else None,
        "given_up": msgspec.to_builtins(choice.given_up) if choice and choice.given_up else None,
        "speedup": msgspec.to_builtins(comparison.speedup) if comparison else None,
        "word": comparison.word if comparison else None,
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
