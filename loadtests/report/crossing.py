"""Where eager's kernels take as long as its dispatch, in a sentence that says no more than is known."""

from __future__ import annotations

from loadtests.plan.cells import BASELINE
from loadtests.report.formatting import significant
from service.statistics.boundedness import Crossover, CrossoverSpan


def crossing(found: CrossoverSpan, estimated: bool) -> str:
    """In decode; `estimated`: dispatch and kernel are, and where their interval is unknown that is said."""
    if found.typical.where == "several":
        again = "at some batch, and shorter at a larger one"
        return f"in decode, {BASELINE}'s kernels take longer than its dispatch {again}"
    place = _place(found.typical)
    if place is None:
        return "where kernels overtake dispatch in decode is unknown: kernel time is not measured here"
    interval = _ends(found) if estimated or found.earliest.where != "unknown" else ""
    return f"in decode, {BASELINE}'s kernels take as long as its dispatch {place}{interval}"


def _place(found: Crossover) -> str | None:
    batch = found.batch or 0.0
    return {
        "at": f"at about batch {significant(batch, 2)}",
        "below": f"below batch {batch:g}, the smallest here",
        "above": f"above batch {batch:g}, the largest here",
        "several": None,
        "unknown": None,
    }[found.where]


def _ends(found: CrossoverSpan) -> str:
    """The interval of the crossover, as far as it lies within what was measured."""
    early, late = found.earliest, found.latest
    if "unknown" in (early.where, late.where):
        return " (interval unknown: this run recorded none of its dispatch)"
    if early.where == late.where != "at":
        return ", at both ends of the dispatch's interval"
    low = "below the smallest batch" if early.where == "below" else significant(early.batch or 0, 2)
    high = "above the largest" if late.where == "above" else significant(late.batch or 0, 2)
    return f" (interval: {low} to {high})"
