"""The plan that the options of `sweep` name, and what they replace in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadtests.plan.cells import Plan, slo_table
from loadtests.plan.plan_file import Dtype, PlanDocument, named_dtype, plan_of, read_plan_file
from loadtests.plan.presets import overridden, preset_document
from service.cli.options import split_list

DEFAULT_PRESET = "quick"


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """A plan with the document that it is made of; `overrides` are options that replaced what that said.

    `dtypes`: the precisions to sweep it in, one after the other; empty: the service's default.
    """

    document: PlanDocument
    plan: Plan
    overrides: dict[str, Any]
    from_file: bool

    @property
    def dtypes(self) -> list[Dtype]:
        """Those of the document."""
        return self.document.dtypes or []


def chosen_plan(
    file: Path | None,
    preset: str | None,
    seed: int | None,
    modes: str | None,
    batch_sizes: str | None,
    slo: str | None = None,
    dtype: str | None = None,
) -> ChosenPlan:
    """The plan of a file or preset with the options over it; by default, of the preset `quick`.

    `dtype` takes the place of all precisions that the plan names.

    Raises PlanError where it cannot be run, and ValueError where an option cannot be read.
    """
    if file is not None and preset is not None:
        raise ValueError("--plan and --preset both name a plan: leave one out")
    written = read_plan_file(file) if file is not None else preset_document(preset or DEFAULT_PRESET)
    sizes = [int(size) for size in split_list(batch_sizes) or ()]
    limits = None if slo is None else slo_table(slo)
    document = overridden(written, seed, split_list(modes), sizes or None, limits)
    if dtype is not None and document.dtypes:
        document = msgspec.structs.replace(document, dtypes=[named_dtype(dtype)])
    overrides = {
        name: getattr(document, name)
        for name in ("seed", "modes", "batch_sizes", "dtypes")
        if getattr(document, name) != getattr(written, name)
    }
    if document.slo is not None and document.slo != written.slo:
        overrides["slo"] = document.slo.text
    plan = plan_of(document)
    # The default modes by name: they may be others where the plan is read again.
    document = msgspec.structs.replace(document, modes=plan.modes)
    return ChosenPlan(document, plan, overrides, file is not None)
