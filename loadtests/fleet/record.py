"""`fleet.json`: the tasks of a fleet, how far each has come, and where and how often it was tried."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from loadtests.fleet.plan import DeviceName, FleetPlan, TaskPlan
from loadtests.plan.dtypes import Dtype
from loadtests.run.document_file import DocumentFile
from loadtests.run.run_file import RUN_FILE, RunError, read_run
from loadtests.run.validation import validate_folder

FLEET_FILE = "fleet.json"
FORMAT_VERSION = 1

State = Literal["not begun", "running", "complete", "not valid", "failed", "lost", "left out"]
"""`complete`, `not valid` (a gate failed) and `left out` (its machine lacks the device) are final.

`failed`: the sweep ended without results; `lost`: its nodes did."""

FINAL: tuple[State, ...] = ("complete", "not valid", "left out")
MEASURED: tuple[State, ...] = ("complete", "not valid")

WITH_RESULTS = (0, 1)
"""Exit codes of a sweep that has measured."""


class Code(msgspec.Struct, kw_only=True, frozen=True):
    """What makes two installations of launchbound the same: version, commit, a digest of changes, method."""

    version: str
    commit: str | None
    changes: str | None
    method: int

    def __str__(self) -> str:
        changed = f" with changes {self.changes}" if self.changes else ""
        return f"{self.version}, commit {self.commit or 'unknown'}{changed}, method {self.method}"


class Try(msgspec.Struct, kw_only=True):
    """One try of a task on one node, in the driver's time.

    `sweep_seconds` is the sweep alone, by the node's clock; `control_seconds` all else between submission and
    the folder's being written, None where it was not. `niceness` of the sweep's processes: above 0 anything
    else on that machine goes first. `said`: what ended it early.
    """

    node: str
    address: str
    submitted: str
    started: str | None = None
    ended: str | None = None
    written: str | None = None
    sweep_seconds: float | None = None
    control_seconds: float | None = None
    niceness: int | None = None
    said: str | None = None


class FleetTask(msgspec.Struct, kw_only=True):
    """One task; its results are in the folder of its name. `price`: dollars per hour, None: not in the plan.

    `said` is why it has no results. `exit_code` is that of `launchbound sweep`.
    """

    name: str
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
    """A fleet. `plan` is its plan file, `sweep` that of every task, `code` the driver's.

    `address` of the cluster; None: one of its own, on this machine.
    """

    format_version: int = FORMAT_VERSION
    name: str
    started: str
    ended: str | None = None
    stopped_because: str | None = None
    plan: str
    sweep: str
    code: Code
    address: str | None = None
    tasks: list[FleetTask]

    @property
    def owed(self) -> list[FleetTask]:
        """The tasks without a final state."""
        return [task for task in self.tasks if task.state not in FINAL]


def new_fleet(plan: FleetPlan, tasks: Sequence[TaskPlan], code: Code, address: str | None) -> Fleet:
    """A fleet of which nothing has run."""
    prices = plan.document.prices
    return Fleet(
        name=plan.document.name,
        started=now(),
        plan=plan.text,
        sweep=plan.sweep,
        code=code,
        address=address,
        tasks=[
            FleetTask(
                name=task.name,
                machine=task.machine,
                device=task.device,
                dtype=task.dtype,
                model=task.model,
                price=prices.get(task.machine),
            )
            for task in tasks
        ],
    )


_FILE = DocumentFile(
    FLEET_FILE,
    Fleet,
    FORMAT_VERSION,
    RunError,
    folder="fleet",
    writer="launchbound fleet",
    mend="report its folders by `report A B C`",
)


def is_fleet(folder: Path) -> bool:
    """Whether `folder` holds the results of a fleet."""
    return _FILE.is_in(folder)


def write_fleet(folder: Path, fleet: Fleet) -> None:
    """Write `fleet.json` atomically."""
    _FILE.write(folder, fleet)


def read_fleet(folder: Path) -> Fleet:
    """`fleet.json` of `folder`. Raises RunError where it is missing, broken or of another format.

    A task that is said to run, and whose results are there, has them: the driver was stopped in between.
    """
    fleet = _FILE.read(folder)
    for task in fleet.tasks:
        # A sweep that has not ended well has sent nothing that counts: the folder is of an earlier try.
        ended_well = task.state == "running" and task.exit_code in WITH_RESULTS
        if ended_well and (folder / task.name / RUN_FILE).is_file():
            task.state = measured_state(folder / task.name)
    return fleet


def measured_state(folder: Path) -> State:
    """What a results folder that came back is: complete, or not valid because a gate failed."""
    gates = validate_folder(folder, read_run(folder))
    return "not valid" if any(gate.failed for gate in gates) else "complete"


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
