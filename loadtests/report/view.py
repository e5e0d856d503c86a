"""The contents of the report's page and of its Markdown version, as plain values."""

from __future__ import annotations

from typing import Any

from loadtests.peers.results import PeersRun
from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report import wording
from loadtests.report.auto_section import auto_section
from loadtests.report.cards import card
from loadtests.report.crossing import crossing
from loadtests.report.formatting import level
from loadtests.report.fusion_launch import fusion_launch
from loadtests.report.ladder import ladder
from loadtests.report.load.section import load_section
from loadtests.report.load_side import load_side
from loadtests.report.peers_section import peers_section
from loadtests.report.proof import proof
from loadtests.report.roofline_section import roofline_section
from loadtests.report.surroundings import environment, mode_status, reproduce, subject
from loadtests.report.tables import table
from loadtests.report.verdict import PLAIN, Findings
from loadtests.report.wall_time import wall_time
from service.statistics.choice import EQUIVALENT


def view(findings: Findings, peers: PeersRun | None = None) -> dict[str, Any]:
    """Everything the templates need, save the plots; `peers` is the comparison with other runtimes."""
    results = findings.results
    run = results.run
    gates = results.gates
    design = fusion_launch(findings)
    return {
        "headline": wording.headline(findings),
        "crossing": crossing(findings.crossover, findings.estimated) + ".",
        "failed": results.failed_gates,
        "warnings": [gate for gate in gates if gate.warning and gate.passed is False],
        "gates": gates,
        "passed_count": sum(gate.passed is True and not gate.warning for gate in gates),
        "subject": subject(run),
        "proof": proof(findings),
        "peers": None if peers is None else peers_section(peers),
        "cards": [card(verdict, findings) for verdict in findings.main],
        "other_cards": [card(verdict, findings) for verdict in findings.others],
        "tables": [table(verdict) for verdict in findings.verdicts],
        "load": load_section(findings.load, findings.summaries, findings.label),
        "auto": auto_section(findings),
        "ladder": [*ladder(findings), *([design.absent] if design.absent else [])],
        "designs": design.designs,
        "roofline": roofline_section(findings),
        "modes": [mode_status(run, mode) for mode in run.plan.ladder_modes],
        "environment": [
            *environment(run),
            *load_side(results),
            ("measured requests", wall_time(results).text),
        ],
        "reproduce": reproduce(run),
        "device": results.device,
        "estimated": findings.estimated,
        "run": run,
        "rounds": _rounds(findings),
        "minimum_rounds": MINIMUM_ROUNDS,
        "baseline": BASELINE,
        "level": level(findings.confidence),
        "misclassed": level(findings.misclassed),
        "plain": PLAIN,
        "equal_within": f"{100 * (EQUIVALENT - 1):.0f} %",
        "comparisons": sum(s.comparison is not None and not s.cell.control for s in findings.summaries),
    }


def _rounds(findings: Findings) -> str:
    """Of the main conditions: '16', or '12 to 16' where some were decided earlier."""
    counts = {s.comparison.speedup.samples for v in findings.main for s in v.summaries if s.comparison}
    counts = counts or {len(findings.results.run.order)}
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
