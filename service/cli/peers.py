"""The command that compares the service's modes with other runtimes: `peers`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    Json,
    bad_input,
    ended_in_order,
    flags,
    print_result,
    refuse_module,
    settings_from,
    split_list,
    terminal,
)

app = typer.Typer()


@app.command(epilog="Example: launchbound peers --only onnxruntime")
def peers(
    url: Annotated[
        str | None, typer.Option(help="A running, warm service; without it one is started.")
    ] = None,
    model: Annotated[str, typer.Option(help="tiny, small, base or a folder of launchbound's.")] = "tiny",
    modes: Annotated[str, typer.Option(help="Modes to start with; all: the whole ladder.")] = "all",
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,4,16",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds.")] = 12,
    calls: Annotated[int, typer.Option(min=1, help="Timed calls per round.")] = 3,
    only: Annotated[
        str | None, typer.Option(help="Rivals that take part, comma-separated; default all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes the orders.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder; default results/<UTC>-<commit>-peers.")] = None,
    _json: Json = False,
) -> None:
    """Compare the modes with other runtimes on the same weights.

    What is measured is kept after every round. Exit codes: 0 complete, 1 a rival took no part, 2 bad input,
    130 interrupted.
    """
    from loadtests.peers.process import RUNTIMES, RivalError, peers_folder
    from loadtests.peers.results import MARKDOWN_FILE, PeersError
    from loadtests.peers.run import PeersPlan, run_peers
    from loadtests.run.folder import commit_name, results_path
    from loadtests.run.run_file import INTERRUPTED
    from loadtests.run.target import Target, TargetError, Unreachable, await_modes
    from service.front.launch import LaunchError, launched

    refuse_module(model, "other runtimes are compared on language models")
    try:
        sizes = tuple(sorted({int(size) for size in split_list(batch_sizes) or ()}))
        peers_folder()
    except (ValueError, RivalError) as error:
        bad_input(error)
    if not sizes:
        bad_input("name at least one batch size")
    known = [rival.name for rival in RUNTIMES]
    wanted = tuple(split_list(only) or ())
    if unknown := sorted(set(wanted) - set(known)):
        bad_input(f"unknown rival {', '.join(unknown)}; try some of {', '.join(known)}")
    plan = PeersPlan(rounds=rounds, calls=calls, batches=sizes, seed=seed, only=wanted)
    folder = out or results_path(commit_name(), "peers")
    served = {"model": model, "modes": modes, "batch_sizes": ",".join(map(str, sizes))}
    if url is None:
        settings_from(**served)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ended_in_order(), ExitStack() as stack:
            if url is None:
                one_thread = {"LAUNCHBOUND_THREADS": "1"}
                log = folder / "service.log"
                url = stack.enter_context(launched(flags(served), log, one_thread, lost=(Unreachable,)))
            target = Target(url, os.environ.get("LAUNCHBOUND_API_KEY"))
            with terminal(stderr=True).status("waiting for the modes") as status:
                await_modes(target, (), status.update, settled=True)
            run = run_peers(target, model, plan, folder, typer.echo)
    except (LaunchError, PeersError, TargetError) as error:
        bad_input(error)
    typer.echo((folder / MARKDOWN_FILE).read_text(encoding="utf-8"))
    absent = [one.name for one in run.contestants if one.unavailable is not None]
    complete = run.incomplete is None
    print_result({"path": str(folder), "left_out": absent, "complete": complete})
    if run.stopped_because == INTERRUPTED:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(0 if complete and not absent else EXIT_FAILED)
