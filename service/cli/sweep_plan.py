"""The plan that the options of `sweep` name, and what they replace in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadtests.plan.cells import Plan
from loadtests.plan.document import PlanDocument, plan_of
from loadtests.plan.plan_file import read_plan_file
from loadtests.plan.presets import overridden, preset_document
from loadtests.plan.slo import slo_table
from service.cli.options import split_list

DEFAULT_PRESET = "quick"


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """A plan with the document that it is made of; `overrides` are options that replaced what that said."""

    document: PlanDocument
    plan: Plan
    overrides: dict[str, Any]
    from_file: bool


def chosen_plan(
    file: Path | None,
    preset: str | None,
    seed: int | None,
    modes: str | None,
    batch_sizes: str | None,
    slo: str | None = None,
) -> ChosenPlan:
    """The plan of a file or preset with the options over it; by default, of the preset `quick`.

    Raises PlanError where it cannot be run, and ValueError where an option cannot be read.
    """
    if file is not None and preset is not None:
        raise ValueError("--plan and --preset both name a plan: leave one out")
    written = read_plan_file(file) if file is not None else preset_document(preset or DEFAULT_PRESET)
    sizes = [int(size) for size in split_list(batch_sizes) or ()]
    limits = None if slo is None else slo_table(slo)
    document = overridden(written, seed, split_list(modes), sizes or None, limits)
    overrides = {
        name: getattr(document, name)
        for name in ("seed", "modes", "batch_sizes")
        if getattr(document, name) != getattr(written, name)
    }
    if document.slo is not None and document.slo != written.slo:
        overrides["slo"] = document.slo.text
    plan = plan_of(document)
    # The default modes by name: they may be others where the plan is read again.
    document = msgspec.structs.replace(document, modes=plan.modes)
    return ChosenPlan(document, plan, overrides, file is not None)
