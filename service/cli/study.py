"""The commands that examine one step: `anatomy` and `probe`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from service.cli.options import Device, Dtype, Model, bad_input, settings_from, terminal
from service.study_names import OPERATOR_CALLS, ProbeName, not_of_modules

if TYPE_CHECKING:
    from rich.console import Console

    from service.anatomy.common import Report

app = typer.Typer()

CALLS = ", ".join(f"'{call}'" for call in OPERATOR_CALLS.values())

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="Sequences, in the smallest bucket that holds them; above the largest one is added. "
        "Of a module: the batch."
    ),
]
More = Annotated[list[str] | None, typer.Option("--set", help="Any argument of the study, as NAME=VALUE.")]


@app.command(epilog="Example: launchbound anatomy --mode eager --timeline")
def anatomy(
    mode: Annotated[str | None, typer.Option(help="The mode to examine.")] = None,
    batch_size: BatchSize = None,
    phase: Annotated[
        Literal["prefill", "decode", "forward"] | None,
        typer.Option(help="The step to examine; default decode, of a module forward."),
    ] = None,
    layers: Annotated[bool, typer.Option("--layers", help="What each layer of PyTorch takes.")] = False,
    budget: Annotated[bool, typer.Option("--budget", help="Dispatch against kernels by batch.")] = False,
    tape: Annotated[bool, typer.Option("--tape", help="What autograd records and saves.")] = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Host and device time of one step; --out: its trace.")
    ] = False,
    memory: Annotated[bool, typer.Option("--memory", help="What the allocator holds.")] = False,
    rms_norm: Annotated[bool, typer.Option("--rms-norm", help="A custom op beside a fusable one.")] = False,
    op: Annotated[str | None, typer.Option(help=f"One operator alone: {CALLS}.")] = None,
    expression: Annotated[str | None, typer.Option(help="With --tape: block, step or a name.")] = None,
    against: Annotated[str | None, typer.Option(help="With --timeline: a second mode.")] = None,
    out: Annotated[Path | None, typer.Option(help="With --timeline or --memory: a folder for files.")] = None,
    more: More = None,
    as_json: Json = False,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """What one step of a mode does, operator by operator; or another study, by its option."""
    selected = {
        "layers": layers,
        "budget": budget,
        "tape": tape,
        "timeline": timeline,
        "memory": memory,
        "rms-norm": rms_norm,
        "operator": op is not None,
    }
    chosen = [name for name, is_set in selected.items() if is_set] or ["operators"]
    if len(chosen) > 1:
        options = " or ".join("--op" if name == "operator" else f"--{name}" for name in chosen)
        bad_input(f"one study at a time: {options}")
    belongs = {
        "--expression": (expression, ["tape"]),
        "--against": (against, ["timeline"]),
        "--out": (out, ["timeline", "memory"]),
    }
    for option, (given, studies) in belongs.items():
        if given is not None and chosen[0] not in studies:
            bad_input(f"{option} goes with --{' or --'.join(studies)}")
    arguments = {
        "mode": mode,
        "batch_size": batch_size,
        "phase": phase,
        "expression": op or expression,
        "against": against,
        "out": out and str(out),
    }
    served = {"model": model, "device": device, "dtype": dtype}
    _study(chosen[0], arguments, more, as_json, served)


@app.command(epilog="Example: launchbound probe graph-break")
def probe(
    name: Annotated[ProbeName, typer.Argument(help="The probe (docs/anatomy.md).")],
    more: More = None,
    as_json: Json = False,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """One pitfall, live: a step without and with it, the counter that moved, the line to blame, the cure."""
    _study("probes", {"name": name}, more, as_json, {"model": model, "device": device, "dtype": dtype})


def _study(
    name: str, arguments: dict[str, Any], more: Sequence[str] | None, as_json: bool, served: dict[str, Any]
) -> None:
    """Run the study `name` with those of `arguments` that are not None, and print its finding."""
    import msgspec

    settings = settings_from(**served)
    if not settings.workload.tokens and (why := not_of_modules(name)):
        bad_input(why)
    size = arguments.get("batch_size")
    if size is not None and size > 0 and settings.workload.bucket(settings.batch_sizes, size) is None:
        settings = settings_from(**served, batch_sizes=[*settings.batch_sizes, size])
    given = (arguments | dict(map(_further_argument, more or ()))).items()
    encoded = msgspec.json.encode({key: value for key, value in given if value is not None})
    from service.anatomy.common import StudyError, prepare_bench
    from service.anatomy.process import run
    from service.anatomy.show import show

    try:
        # What a module of the user's own prints is no part of the finding.
        with redirect_stdout(sys.stderr), _progress(terminal(stderr=True)) as report:
            report("loading the model")
            found = run(prepare_bench(settings.engine_settings("")), name, encoded, report)
    except StudyError as error:
        bad_input(error)
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    console = terminal()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = terminal(width=160)  # a pipe has no width, and rich would take 80 columns for it
    show(found, console)


def _further_argument(pair: str) -> tuple[str, Any]:
    """'NAME=VALUE', the value as JSON, else text."""
    key, equals, value = pair.partition("=")
    if not equals:
        bad_input(f"--set {pair}: write NAME=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


@contextmanager
def _progress(console: Console) -> Iterator[Report]:
    """Yields a `Report` for the body: a terminal shows the newest line, anything else all of them."""
    if not console.is_terminal:
        yield lambda text, *_: console.print(text, soft_wrap=True, markup=False)
        return
    with console.status("") as status:
        yield lambda text, *_: status.update(text)
