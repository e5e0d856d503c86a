"""The command that repeats starts of a service: `startup`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from service.cli.options import (
    EXIT_FAILED,
    BatchSizes,
    Device,
    Dtype,
    Json,
    Model,
    Modes,
    bad_input,
    ended_in_order,
    flags,
    print_result,
    report_extra_needed,
    settings_from,
)

app = typer.Typer()


@app.command(epilog="Example: launchbound startup --cold 1 --warm 3 --modes inference_mode,compiled")
def startup(
    cold: Annotated[int, typer.Option(min=0, help="Starts with an empty cache.")] = 5,
    warm: Annotated[int, typer.Option(min=0, help="Starts with what an earlier start compiled.")] = 5,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
    batch_sizes: BatchSizes = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default results/<UTC>-<commit>-startup.")] = None,
    _json: Json = False,
) -> None:
    """Start a service again and again, and show where the seconds until it is ready go.

    Cold and warm starts alternate; each has new processes, and their caches are their own. Exit codes: 0
    measured, 1 a mode failed, 2 bad input, 130 interrupted.
    """
    from loadtests.run.folder import commit_name, results_path
    from loadtests.run.run_file import STARTUP_FILE
    from loadtests.run.target import ModeFailed, Target, TargetError, Unreachable
    from service.front.launch import LaunchError, launched

    if not cold + warm:
        bad_input("no start is asked for: raise --cold or --warm")
    served = {"model": model, "device": device, "dtype": dtype, "modes": modes, "batch_sizes": batch_sizes}
    settings = settings_from(**served)
    with report_extra_needed():
        from loadtests.startup import run_starts, show_startup
    folder, cache = out or results_path(commit_name(), "startup"), settings.cache_folder
    if (folder / STARTUP_FILE).exists():
        bad_input(f"{folder} has starts already: name another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def launch(filled: Path) -> Iterator[Target]:
        own = {"LAUNCHBOUND_CACHE_FOLDER": str(filled)}
        with launched(flags(served), folder / "service.log", own, lost=(Unreachable,)) as url:
            yield Target(url, os.environ.get("LAUNCHBOUND_API_KEY"))

    try:
        with ended_in_order(), Console(stderr=True).status("a start") as status:
            run_starts(launch, {"cold": cold, "warm": warm}, settings.modes, cache, folder, status.update)
    except ModeFailed as error:
        typer.echo(f"launchbound: {error} (log: {folder / 'service.log'})", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    except (LaunchError, TargetError) as error:
        bad_input(f"{error} (log: {folder / 'service.log'})")
    print_result(show_startup(folder, Console()))
