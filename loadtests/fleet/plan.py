"""A fleet's plan, the tasks that it makes, and `fleet.json`: how far each has come, and where it ran."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from loadtests.plan.cells import Plan, PlanError
from loadtests.plan.plan_file import (
    DTYPES,
    PLAN,
    REFERENCE,
    DocumentError,
    Dtype,
    Grammar,
    PlanDocument,
    line_of,
    plan_of,
    read_plan_file,
    toml_of,
)
from loadtests.plan.presets import PRESETS, preset_document
from loadtests.run.run_file import DocumentFile, RunError, read_run
from loadtests.run.validation import validate_folder
from models.config import CONFIGS
from service.modes import swept_modes

FLEET_FILE = "fleet.json"

DeviceName = Literal["cpu", "cuda"]
Kind = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")]
"""A kind of machine: what Ray takes as a label's value."""

Words = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]

State = Literal["not begun", "running", "complete", "not valid", "failed", "lost", "left out"]
"""`complete`, `not valid` (a gate failed) and `left out` (its machine lacks the device) are final.

`failed`: the sweep ended without results; `lost`: its nodes did."""

FINAL: tuple[State, ...] = ("complete", "not valid", "left out")
MEASURED: tuple[State, ...] = ("complete", "not valid")
MOST_TASKS = 26
"""A report letters its runs."""

HUB = "hf:"
"""Begins the name of a model of Hugging Face: a folder, or an id of the hub."""


class FleetDocument(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A fleet's plan file. `sweep`: a preset, a plan file beside this one, or a plan as a table.

    `machines` None: the kinds that the cluster has. `prices`: dollars per hour by kind of machine.
    """

    name: Annotated[str, Meta(min_length=1)]
    sweep: str | PlanDocument = "quick"
    models: Words = msgspec.field(default_factory=lambda: ["tiny"])
    dtypes: Annotated[list[Dtype], Meta(min_length=1)] = msgspec.field(default_factory=lambda: [REFERENCE])
    devices: Annotated[list[DeviceName], Meta(min_length=1)] = msgspec.field(default_factory=lambda: ["cpu"])
    machines: Annotated[list[Kind], Meta(min_length=1)] | None = None
    prices: dict[Kind, Annotated[float, Meta(gt=0, lt=1e9)]] = {}


GRAMMAR = Grammar(
    FleetDocument,
    tables={"sweep": PlanDocument, **{f"sweep.{name}": table for name, table in PLAN.tables.items()}},
    values={**PLAN.values, "dtypes": DTYPES, "devices": get_args(DeviceName)},
)


class Try(msgspec.Struct, kw_only=True):
    """One try of a task on one node, in the driver's time.

    `sweep_seconds` is the sweep alone, by the node's clock; `control_seconds` all else from its beginning
    there until its folder is here, None where it is not. `niceness` of the sweep's processes: above 0
    anything else on that machine runs first. `said`: what ended it early.
    """

    node: str
    address: str
    started: str
    ended: str | None = None
    sweep_seconds: float | None = None
    control_seconds: float | None = None
    niceness: int | None = None
    said: str | None = None


class FleetTask(msgspec.Struct, kw_only=True):
    """The fleet's sweep on one kind of machine; its results are in the folder of its name.

    `price`: dollars per hour, None: not in the plan. `said` is why it has no results. `exit_code` is that of
    `launchbound sweep`.
    """

    # Also the name of a folder: nothing in it leads elsewhere.
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    machine: str
    device: DeviceName
    dtype: Dtype
    model: str
    price: float | None = None
    state: State = "not begun"
    said: str | None = None
    exit_code: int | None = None
    tries: list[Try] = []

    @property
    def control_seconds(self) -> float | None:
        """Of the try that brought its results; None before."""
        return self.tries[-1].control_seconds if self.tries else None


class Fleet(msgspec.Struct, kw_only=True):
    """A fleet. `plan` is its plan file, `sweep` that of every task, `code` the driver's launchbound.

    `address` of the cluster; None: one of its own, on this machine.
    """

    format_version: int = 2
    name: str
    started: str
    ended: str | None = None
    stopped_because: str | None = None
    plan: str
    sweep: str
    code: str
    address: str | None = None
    tasks: list[FleetTask]

    @property
    def owed(self) -> list[FleetTask]:
        """The tasks without a final state."""
        return [task for task in self.tasks if task.state not in FINAL]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """A fleet's plan that can be run; `text` is its file, `sweep` the plan file that every task is given."""

    document: FleetDocument
    text: str
    sweep: str
    plan: Plan

    def tasks(self, kinds: Sequence[str]) -> list[FleetTask]:
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
                f"[prices] names {', '.join(strange)}, and the machines are of kind {', '.join(machines)}: "
                "name one of these, or list in `machines` what is still to join"
            )
        found = [
            FleetTask(
                name=re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{machine}-{device}-{dtype}-{model}"),
                machine=machine,
                device=device,
                dtype=dtype,
                model=model,
                price=one.prices.get(machine),
            )
            for machine, device, dtype, model in product(machines, one.devices, one.dtypes, one.models)
        ]
        names = Counter(task.name for task in found)
        if same := [name for name, count in names.items() if count > 1]:
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
        document = GRAMMAR.parse(text)
    except PlanError as error:
        raise PlanError(f"{path}, {error}") from error
    for index, model in enumerate(document.models):
        if _is_relative(model, path.parent):
            line = line_of(text, ("models", index))
            raise PlanError(
                f"{path}, line {line}: `{model}` is a relative path, and nodes run elsewhere: name one "
                f"of {', '.join(CONFIGS)}, hf:HUB-ID, or the absolute path of a folder that every node has"
            )
    try:
        sweep = _sweep_of(document, path.parent)
        if sweep.modes is None:
            sweep = msgspec.structs.replace(sweep, modes=swept_modes())
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


def _is_relative(model: str, folder: Path) -> bool:
    """Whether `model` is a relative path; also what else is an id of the hub, where it is a folder here or in
    `folder`.
    """
    if not model.startswith(HUB):
        return model not in CONFIGS and not Path(model).is_absolute()
    path = Path(os.path.expanduser(model.removeprefix(HUB)))
    here = model.startswith(f"{HUB}.") or path.is_dir() or (folder / path).is_dir()
    return here and not path.is_absolute()


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


_FILE = DocumentFile(
    FLEET_FILE,
    Fleet,
    2,
    RunError,
    folder="fleet",
    writer="launchbound fleet",
    mend="report its folders by `report A B C`",
)


is_fleet, write_fleet, read_fleet = _FILE.is_in, _FILE.write, _FILE.read
"""Whether a folder holds the results of a fleet; write its `fleet.json` atomically; and read it, which raises
RunError where it is missing, broken or of another format.
"""


def measured_state(folder: Path) -> State:
    """What a results folder that came back is: complete, or not valid because a gate failed."""
    gates = validate_folder(folder, read_run(folder))
    return "not valid" if any(gate.failed for gate in gates) else "complete"


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
