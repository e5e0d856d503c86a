"""A fleet's plan: which sweep is run in which models, precisions and devices, on which kinds of machines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from loadtests.plan.cells import Plan, PlanError
from loadtests.plan.document import DocumentError, PlanDocument, plan_of
from loadtests.plan.dtypes import DTYPES, REFERENCE, Dtype
from loadtests.plan.plan_file import PLAN, line_of, read_plan_file, toml_of
from loadtests.plan.presets import PRESETS, preset_document
from loadtests.plan.toml_text import Grammar, Steps
from models.config import CONFIGS

DeviceName = Literal["cpu", "cuda"]
Kind = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")]
"""A kind of machine: what Ray takes as a label's value."""

MOST_TASKS = 26
"""A report letters its runs."""

HUB = "hf:"
"""Begins the name of a model of Hugging Face: a folder, or an id of the hub."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


class FleetDocument(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A fleet's plan file. `sweep`: a preset, a plan file beside this one, or a plan as a table.

    `machines` None: the kinds that the cluster has. `prices`: dollars per hour by kind of machine.
    """

    name: Annotated[str, Meta(min_length=1)]
    sweep: str | PlanDocument = "quick"
    models: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["tiny"]
    )
    dtypes: Annotated[list[Dtype], Meta(min_length=1)] = msgspec.field(default_factory=lambda: [REFERENCE])
    devices: Annotated[list[DeviceName], Meta(min_length=1)] = msgspec.field(default_factory=lambda: ["cpu"])
    machines: Annotated[list[Kind], Meta(min_length=1)] | None = None
    prices: dict[Kind, Annotated[float, Meta(gt=0)]] = {}


FLEET = Grammar(
    FleetDocument,
    tables={"sweep": PlanDocument, **{f"sweep.{name}": table for name, table in PLAN.tables.items()}},
    values={**PLAN.values, "dtypes": DTYPES, "devices": get_args(DeviceName)},
)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One task: the fleet's sweep on one kind of machine."""

    machine: str
    device: DeviceName
    dtype: Dtype
    model: str

    @property
    def name(self) -> str:
        """Its name, and that of the folder of its results."""
        return _NOT_IN_NAMES.sub("-", f"{self.machine}-{self.device}-{self.dtype}-{self.model}")


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """A fleet's plan that can be run; `text` is its file, `sweep` the plan file that every task is given."""

    document: FleetDocument
    text: str
    sweep: str
    plan: Plan

    def tasks(self, kinds: Sequence[str]) -> list[TaskPlan]:
        """One per kind of machine, device, precision and model; of `kinds` where the plan names none.

        Raises PlanError where there is none, where two would share a folder, above 26, and for a price
        of another kind.
        """
        one = self.document
        machines = one.machines or kinds
        if not machines:
            raise PlanError(
                "no node of the cluster says what kind of machine it is: start each with "
                "`ray start … --labels launchbound-machine=KIND`"
            )
        if strange := [kind for kind in one.prices if kind not in machines]:
            raise PlanError(
                f"[prices] names {', '.join(strange)}, and the cluster has machines of kind "
                f"{', '.join(machines)}: name one of these, or list in `machines` what is still to join"
            )
        axes = product(machines, one.devices, one.dtypes, one.models)
        found = [TaskPlan(*values) for values in axes]
        names = [task.name for task in found]
        if same := sorted({name for name in names if names.count(name) > 1}):
            raise PlanError(f"two tasks are called {', '.join(same)}: take one of them out of the plan")
        if len(found) > MOST_TASKS:
            raise PlanError(f"{len(found)} tasks: one report takes {MOST_TASKS}, make several plans")
        return found


def read_fleet_plan(path: Path) -> FleetPlan:
    """The plan of `path`. Raises PlanError, naming file, line and remedy, for what makes none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the plan {path}: {error}; name a TOML file") from error
    try:
        document = FLEET.parse(text)
    except PlanError as error:
        raise PlanError(f"{path}, {error}") from error
    for steps, fault in _faults(document, path.parent):
        raise PlanError(f"{path}, line {line_of(text, steps)}: {fault}")
    try:
        sweep = _sweep_of(document, path.parent)
        plan = plan_of(sweep)
    except DocumentError as error:
        raise PlanError(f"{path}, line {line_of(text, ('sweep', *error.steps))}: {error}") from error
    if sweep.dtypes:
        line = line_of(text, ("sweep",))
        raise PlanError(
            f"{path}, line {line}: its sweep names `dtypes`, and a task has one: name them for the fleet"
        )
    # The modes by name: what a node takes for the default may be others.
    sweep = msgspec.structs.replace(sweep, modes=plan.modes)
    return FleetPlan(document, text, toml_of(sweep), plan)


def _faults(document: FleetDocument, folder: Path) -> Iterator[tuple[Steps, str]]:
    for key in ("models", "dtypes", "devices", "machines"):
        values = getattr(document, key) or []
        if twice := sorted({value for value in values if values.count(value) > 1}):
            yield (key,), f"{', '.join(twice)} is in `{key}` twice: name each once"
    named = document.machines
    if named is not None and (strange := [kind for kind in document.prices if kind not in named]):
        yield ("prices", strange[0]), f"`{strange[0]}` has a price and is not in `machines`: add it there"
    for kind, price in document.prices.items():
        if not isfinite(price):
            yield (
                ("prices", kind),
                f"`{kind}` has the price {price}: write its dollars per hour",
            )
    for index, model in enumerate(document.models):
        if _of_this_machine(model, folder):
            yield (
                ("models", index),
                f"`{model}` is a relative path, and nodes do not run in this folder: name one of "
                f"{', '.join(CONFIGS)}, hf:HUB-ID, or the absolute path of a folder that every node has",
            )


def _of_this_machine(model: str, folder: Path) -> bool:
    """Whether `model` is a relative path; beside such a folder also what else would be an id of the hub."""
    if not model.startswith(HUB):
        return model not in CONFIGS and not Path(model).is_absolute()
    place = Path(os.path.expanduser(model.removeprefix(HUB)))
    return not place.is_absolute() and (
        model.startswith(f"{HUB}.") or place.is_dir() or (folder / place).is_dir()
    )


def _sweep_of(document: FleetDocument, folder: Path) -> PlanDocument:
    """The document of its sweep, whose file is beside the fleet's.

    Raises DocumentError where there is none of that name, and PlanError as `read_plan_file`.
    """
    if isinstance(document.sweep, PlanDocument):
        return document.sweep
    if document.sweep in PRESETS:
        return preset_document(document.sweep)
    path = folder / document.sweep
    if not path.is_file():
        raise DocumentError(
            f"`sweep`: '{document.sweep}' is no preset ({', '.join(PRESETS)}), and {path} no file: name one"
        )
    return read_plan_file(path)
