"""The command that sweeps on many machines: `fleet`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import (
    EXIT_MACHINE,
    Json,
    Preset,
    bad_input,
    ended_in_order,
    installing,
    refuse_module,
    split_list,
    terminal,
)
from service.cli.report import last_line, picture_of_fleet, pictured
from service.cli.sweep import ChosenPlan, PlanOptions, chosen_plans

app = typer.Typer()


@app.command(epilog="Example: launchbound fleet --preset standard --dry-run")
def fleet(
    plan: Annotated[Path | None, typer.Argument(help="A plan file (docs/sweeps.md).")] = None,
    preset: Preset = None,
    models: Annotated[str, typer.Option(help="Models, comma-separated.")] = "tiny",
    dtypes: Annotated[str, typer.Option(help="Precisions, comma-separated.")] = "float32",
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster, HOST:PORT; without it one node on this machine.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; default results/<UTC>-fleet.")] = None,
    resume: Annotated[Path | None, typer.Option(help="A fleet's folder: run what has no results.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run where, and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Sweep on each kind of machine of a cluster, and report which machine and which mode.

    Exit codes: 0 all valid, 1 a gate or a task failed, 2 bad input, 4 disk full, 130 interrupted.
    """
    from loadtests.fleet.run import read_fleet
    from loadtests.plan.cells import PlanError
    from loadtests.run.folder import is_full, results_path
    from loadtests.run.rows import RowsError
    from service.ray_cluster import ClusterError

    if resume is not None and (plan or preset or out or dry_run):
        bad_input("--resume goes on in its folder, with its plan: leave out all but --address")
    if dry_run and as_json:
        bad_input("--json prints the result of a run: leave it out with --dry-run")
    folder = resume or out or results_path("fleet")
    try:
        if resume is not None:
            address = address or read_fleet(resume).address
        chosen = chosen_plans(PlanOptions(file=plan, preset=preset), own_device="cpu")[0]
        choice = chosen, split_list(models) or [], split_list(dtypes) or []
        for model in choice[1]:
            refuse_module(model, "the nodes of a fleet do not have its code")
        interrupted = _on_cluster(folder, address, None if resume else choice, dry_run)
        raise typer.Exit(0 if dry_run else pictured(picture_of_fleet, folder, interrupted))
    except ModuleNotFoundError as error:
        bad_input(f"{error.name} is not installed here: {installing('ray')}")
    except (PlanError, RowsError, ClusterError, ValueError) as error:
        bad_input(error)
    except OSError as error:
        if not is_full(error):
            raise
        typer.echo(f"launchbound: no space left for {folder}; free some, then {_to_go_on(folder)}", err=True)
        last_line(folder, None, valid=False)
        raise typer.Exit(EXIT_MACHINE) from error


def _on_cluster(
    folder: Path, address: str | None, choice: tuple[ChosenPlan, list[str], list[str]] | None, dry_run: bool
) -> bool:
    """Run or show a choice of plan, models and precisions; without one go on in `folder`.

    Returns whether it was interrupted.
    """
    from loadtests.fleet import run
    from loadtests.plan.plan_file import toml_of
    from loadtests.plan.presets import describe
    from loadtests.run.folder import now
    from service.ray_cluster import connected, environment

    report = partial(terminal().print, markup=False, highlight=False, soft_wrap=True)
    os.environ.update(environment(address))
    # Ray takes SIGTERM for itself when it starts, hence the inner block.
    with ended_in_order(), connected(address, {run.LABEL: run.LOCAL_KIND}) as ray, ended_in_order():
        try:
            if choice is None:
                run.go_on(ray, folder, report)
                return False
            chosen, models, dtypes = choice
            tasks = run.tasks_of(run.alive(ray), models, dtypes)
            if dry_run:
                lines = (f"  {one.name}" for one in tasks)
                report("\n".join([f"{len(tasks)} tasks, each this sweep", *lines, "", describe(chosen.plan)]))
                return False
            fleet = run.Fleet(
                started=now(),
                sweep=toml_of(chosen.document),
                code=run.installed_code(),
                address=address,
                tasks=tasks,
            )
            run.begin(ray, fleet, folder, report)
        except KeyboardInterrupt:
            typer.echo(f"interrupted: what has finished is kept; {_to_go_on(folder)}")
            return True
    return False


def _to_go_on(folder: Path) -> str:
    return f"go on with `launchbound fleet --resume {folder}`"
