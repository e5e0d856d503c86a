"""What the commands share: options, settings, the exit for bad input, and signals that end one in order."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TextIO

import typer

from models.naming import ModuleError, find_source, is_called, names_module

if TYPE_CHECKING:
    from rich.console import Console

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_MACHINE = 4
EXIT_INTERRUPTED = 130

EXIT_CODES = (
    "Exit codes: 0 success; 1 a check or gate failed; 2 bad input; 3 undecided (compare); 4 a full disk, "
    "whose message says how to go on, or another fault of the machine; 130 Ctrl-C, SIGTERM or SIGHUP "
    "interrupted sweep, run, fleet, peers, startup, generate or selftest: what is measured is kept."
)


def bad_input(message: object) -> NoReturn:
    """Print `message`, which states the fault and its remedy, and exit with code 2."""
    typer.echo(f"launchbound: {message}", err=True)
    raise typer.Exit(EXIT_BAD_INPUT)


def terminal(**options: Any) -> Console:  # noqa: ANN401 - as rich has them
    """A console on standard output, unless `options` say otherwise. No help waits until rich is imported."""
    from rich.console import Console

    return Console(**options)


@contextmanager
def report_extra_needed() -> Iterator[None]:
    """Have a package that is not installed be bad input: the block needs what the extra `report` installs."""
    try:
        yield
    except ModuleNotFoundError as error:
        bad_input(f"{error.name} is not installed here: {installing('report')}")


def installing(extra: str) -> str:
    """How to install what `extra` needs: no index has this package, and another of its name is not ours."""
    return f"run `pip install -e '.[{extra}]'` in the folder of launchbound's source"


def settings_from(on_nodes: bool = False, /, **options: Any) -> Any:  # noqa: ANN401 - heavy for `--help`
    """Settings of the environment with `options` over them; unknown or wrong ones end the program, as does a
    module of the user's that is not there. `on_nodes`: other machines load it, and may have it.
    """
    from pydantic import ValidationError

    from service.front.settings import Settings

    try:
        settings = Settings(**{name: value for name, value in options.items() if value is not None})
        if not on_nodes and names_module(settings.model):
            find_source(settings.model)
        return settings
    except ModuleError as error:
        bad_input(error)
    except ValidationError as error:
        # Pydantic says before the words of our validators that they were raised, which tells a user nothing.
        problems = (
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        bad_input("; ".join(problems))


Model = Annotated[
    str | None,
    typer.Option(help="tiny, small, base, a folder, hf:FOLDER, hf:HUB-ID@COMMIT, or MODULE:FACTORY."),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "autocast-bfloat16"] | None,
    typer.Option(help="Precision; auto: float32 on a CPU, bfloat16 on a GPU."),
]
Modes = Annotated[
    str | None,
    typer.Option(help="Modes, comma-separated, made ready in this order; all: each of the ladder."),
]
Advice = Annotated[
    str | None, typer.Option(help="Results folder of a sweep: `auto` runs what its report advises.")
]
BatchSizes = Annotated[str | None, typer.Option(help="Batch buckets, comma-separated.")]
PresetName = Literal["quick", "standard", "full", "gpu", "saturation"]
"""Those of `loadtests.plan.presets`, which would take its time to import for `--help`."""

Preset = Annotated[PresetName | None, typer.Option(help="A named plan (docs/sweeps.md); default quick.")]


def refuse_module(model: str, why: str) -> None:
    """Exit as for bad input where `model` names a factory of the user's own."""
    if is_called(model):
        bad_input(f"{model} is a module of your own, and {why}: `launchbound run {model}` measures it")


def flags(options: dict[str, Any]) -> list[str]:
    """Options as `launchbound serve` takes them; None is left to its default."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]


def split_list(text: str | None) -> list[str] | None:
    """The items of a comma-separated list; None for None or an empty text."""
    return [item.strip() for item in text.split(",") if item.strip()] if text else None


_results: ContextVar[TextIO | None] = ContextVar("_results", default=None)
"""Standard output, where `--json` keeps it for the result."""


def _for_the_result_alone(context: typer.Context, wanted: bool) -> bool:
    """Until the command ends, what it prints beside its result goes to standard error."""
    if wanted:
        token = _results.set(sys.stdout)
        context.call_on_close(lambda: _results.reset(token))
        context.with_resource(redirect_stdout(sys.stderr))
    return wanted


Json = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=_for_the_result_alone,
        help="Print one JSON document; all else goes to standard error.",
    ),
]


@contextmanager
def of_a_part() -> Iterator[None]:
    """Within: what is printed as a result is one of a part, and goes to standard error."""
    token = _results.set(sys.stderr)
    try:
        yield
    finally:
        _results.reset(token)


def print_result(document: dict[str, Any]) -> None:
    """Print `document` as one line of JSON."""
    typer.echo(json.dumps(document), file=_results.get())


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt in the block, as Ctrl-C does; an ignored one stays so."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
