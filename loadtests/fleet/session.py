"""Begins a fleet in a folder, or goes on with one: what a command does between a cluster and a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from loadtests.fleet.cluster import Cluster, Handle, RollCall
from loadtests.fleet.dry_run import described
from loadtests.fleet.messages import SWEEP_COMMAND
from loadtests.fleet.node import installed_code
from loadtests.fleet.nodes import Asked, kinds_of, notes
from loadtests.fleet.plan import FleetPlan
from loadtests.fleet.record import FLEET_FILE, Fleet, new_fleet, read_fleet, write_fleet
from loadtests.fleet.run import FleetRun
from loadtests.run.folder_lock import locked
from loadtests.run.run_file import PLAN_FILE, RunError

Report = Callable[[str], None]


def show(cluster: Cluster[Handle], plan: FleetPlan, report: Report) -> None:
    """What would run where, and run nothing. Raises PlanError as `FleetPlan.tasks`."""
    fleet, nodes = _planned(cluster, plan, None)
    for line in notes(nodes):
        report(line)
    report(described(plan.document.name, plan.plan, fleet.tasks, nodes))


def begin(
    cluster: Cluster[Handle],
    plan: FleetPlan,
    folder: Path,
    report: Report,
    *,
    address: str | None = None,
    wait_seconds: float = 0.0,
    command: Sequence[str] = SWEEP_COMMAND,
) -> Fleet:
    """Run all tasks of `plan` on `cluster` into `folder`, which is created; `report` is told each change.

    `address` is kept for going on; `wait_seconds` as in FleetRun. Raises PlanError, RunError where `folder`
    holds a fleet already, FolderInUse, and KeyboardInterrupt, with what has finished kept.
    """
    if (folder / FLEET_FILE).exists():
        raise RunError(
            f"{folder} holds a fleet already: name a new folder, or go on with it by --resume {folder}"
        )
    fleet, nodes = _planned(cluster, plan, address)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        (folder / PLAN_FILE).write_text(fleet.sweep, encoding="utf-8")
        write_fleet(folder, fleet)
        for line in notes(nodes):
            report(line)
        FleetRun(cluster, fleet, folder, report, wait_seconds=wait_seconds, command=command).run()
    return fleet


def go_on(
    cluster: Cluster[Handle],
    folder: Path,
    report: Report,
    *,
    wait_seconds: float = 0.0,
    command: Sequence[str] = SWEEP_COMMAND,
) -> Fleet:
    """Run the tasks of the fleet in `folder` that have no results, those that failed too; else as `begin`.

    Raises RunError where nothing is owed, and where this is not the code that the fleet began with.
    """
    with locked(folder):
        fleet = read_fleet(folder)
        write_fleet(folder, fleet)
        if not fleet.owed:
            raise RunError(f"nothing is left to run in {folder}: `launchbound report {folder}` reports it")
        if (code := installed_code()) != fleet.code:
            raise RunError(
                f"the fleet in {folder} was begun with launchbound {fleet.code}, this is {code}: go on with "
                "that one, or begin a new fleet"
            )
        for line in notes(RollCall(cluster, code).nodes()):
            report(line)
        FleetRun(cluster, fleet, folder, report, wait_seconds=wait_seconds, command=command).run()
    return fleet


def _planned(cluster: Cluster[Handle], plan: FleetPlan, address: str | None) -> tuple[Fleet, list[Asked]]:
    code = installed_code()
    nodes = RollCall(cluster, code).nodes()
    tasks = plan.tasks(kinds_of(one.node for one in nodes))
    return new_fleet(plan, tasks, code, address), nodes
