"""The command that sweeps on many machines: `fleet`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from service.cli.options import EXIT_MACHINE, bad_input, ended_in_order
from service.cli.report import last_line, picture_of_fleet, pictured, printed

if TYPE_CHECKING:
    from loadtests.fleet.plan import FleetPlan

app = typer.Typer()


@app.command(epilog="Example: launchbound fleet fleet.toml --dry-run")
def fleet(
    plan: Annotated[Path | None, typer.Argument(help="A fleet's plan file (docs/fleet.md).")] = None,
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster, HOST:PORT; without it one node on this machine.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; default results/<UTC>-fleet.")] = None,
    resume: Annotated[Path | None, typer.Option(help="A fleet's folder: run what has no results.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run where, and stop.")] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a node of a kind that has none.")
    ] = 60.0,
) -> None:
    """Sweep on each kind of machine of a cluster, and report which machine and which mode.

    Exit codes: 0 all valid, 1 a gate or a task failed or the fleet was stopped, 2 bad input, 4 disk full, 130
    stopped before a task had finished.
    """
    from loadtests.fleet.plan import read_fleet, read_fleet_plan
    from loadtests.plan.cells import PlanError
    from loadtests.run.folder import results_path
    from loadtests.run.rows import RowsError

    if (plan is None) == (resume is None):
        bad_input("name a plan file, or a folder by --resume: one of them")
    if resume is not None and (out or dry_run):
        bad_input("--resume goes on in its folder: leave out --out and --dry-run")
    try:
        chosen = None if plan is None else read_fleet_plan(plan)
        if resume is not None and address is None:
            address = read_fleet(resume).address
    except (PlanError, RowsError) as error:
        bad_input(error)
    folder = resume or out or results_path("fleet")
    raise typer.Exit(_run(chosen, folder, address, wait, dry_run))


def _run(plan: FleetPlan | None, folder: Path, address: str | None, wait: float, dry_run: bool) -> int:
    """On the cluster; without a plan go on in `folder`. Returns the exit code."""
    from loadtests.plan.cells import PlanError
    from loadtests.run.folder import is_full
    from loadtests.run.rows import RowsError
    from service.ray_cluster import ClusterError

    try:
        interrupted = _on_cluster(plan, folder, address, wait, dry_run)
        return 0 if dry_run else pictured(picture_of_fleet, folder, interrupted)
    except (PlanError, RowsError, ClusterError) as error:
        bad_input(error)
    except ModuleNotFoundError as error:
        bad_input(f"{error.name} is not installed here: install it with `pip install 'launchbound[ray]'`")
    except OSError as error:
        if not is_full(error):
            raise
        typer.echo(f"launchbound: no space left for {folder}; free some, then {_to_go_on(folder)}", err=True)
        last_line(folder, None, valid=False)
        return EXIT_MACHINE


def _on_cluster(
    plan: FleetPlan | None, folder: Path, address: str | None, wait: float, dry_run: bool
) -> bool:
    """Run or show; returns whether it was interrupted."""
    from loadtests.fleet import run
    from service.ray_cluster import connected, environment

    report = printed(Console())
    os.environ.update(environment(address))
    # Ray takes SIGTERM for itself when it starts, hence the inner block.
    with ended_in_order(), connected(address, {run.LABEL: run.LOCAL_KIND}) as ray, ended_in_order():
        try:
            if plan is None:
                run.go_on(ray, folder, report, wait_seconds=wait)
            elif dry_run:
                nodes = run.alive(ray)
                report(run.described(plan, run.planned(plan, nodes, address).tasks, nodes))
            else:
                run.begin(ray, plan, folder, report, address=address, wait_seconds=wait)
        except KeyboardInterrupt:
            typer.echo(f"interrupted: what has finished is kept; {_to_go_on(folder)}")
            return True
    return False


def _to_go_on(folder: Path) -> str:
    return f"go on with `launchbound fleet --resume {folder}`"
