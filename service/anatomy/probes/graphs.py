"""Probe of graph breaks: a call in the middle of a compiled step that Dynamo cannot trace."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from service.anatomy.probes.blame import line_of_break
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep
from service.anatomy.probes.compiling import compile_counting, compiled
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report


def graph_break(probed: ProbedModel, report: Report) -> FaultComparison:
    """A clock read between two layers."""
    faulty = probed.copy()
    probed.layers(faulty)[0].register_forward_hook(_read_clock)
    report("compiling the step whole")
    without = probed.served(compiled(probed.model))
    before = compile_counting(without)
    report("compiling it around the break")
    with_fault = probed.served(compiled(faulty))
    after = compile_counting(with_fault)
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(name="graph_breaks", before=before.breaks, after=after.breaks),
        blame=line_of_break(after.reasons),
        notes=[
            f"{before.graphs} graph became {after.graphs}, with Python between them. "
            f"The compiler's reason: {after.first_reason}.",
            "The break lies inside the loop over the layers, which is compiled whole or not at all: "
            "Python runs it, and only what it calls is compiled. Each frame that the break leaves counts.",
        ],
    )


def _read_clock(layer: Any, inputs: object, output: object) -> None:  # noqa: ANN401 - sets a new attribute
    layer.left_at_seconds = perf_counter()
