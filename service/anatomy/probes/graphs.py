"""Probe of the graph: a call in the middle of a compiled step that the compiler cannot follow."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from service.anatomy.probes.blame import line_of_break
from service.anatomy.probes.comparison import Counter, Side, Trial
from service.anatomy.probes.compiling import compile_counting, compiled
from service.anatomy.probes.probed_model import Subject


def graph_break(subject: Subject, say: Callable[[str], None]) -> Trial:
    """A clock read between two layers."""
    spoiled = subject.copy()
    subject.layers(spoiled)[0].register_forward_hook(_read_clock)
    say("compiling the step whole")
    without = subject.served(compiled(subject.model))
    before = compile_counting(without)
    say("compiling it around the break")
    with_fault = subject.served(compiled(spoiled))
    after = compile_counting(with_fault)
    return Trial(
        without=Side(without),
        with_fault=Side(with_fault),
        counter=Counter(name="graph_breaks", before=before.breaks, after=after.breaks),
        blame=line_of_break(after.reasons),
        notes=[
            f"{before.graphs} graph became {after.graphs}, with Python between them. "
            f"The compiler says: {after.first_reason}.",
            "The break lies inside the loop over the layers, which is compiled whole or not at all: "
            "Python runs it, and only what it calls is compiled. Each frame that the break leaves counts.",
        ],
    )


def _read_clock(layer: Any, inputs: object, output: object) -> None:  # noqa: ANN401 - gets a new attribute
    layer.left_at_seconds = perf_counter()
