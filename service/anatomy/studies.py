"""The studies by name: which arguments each takes, what runs it; and the command that does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
from rich.console import Console

from service.anatomy.common import Report, StudyError, prepare_bench
from service.anatomy.show import show
from service.measure.cases import Bench
from service.records import EngineSettings


class LoadedStudy(NamedTuple):
    arguments: type[msgspec.Struct]
    run: Callable[[Bench, Any, Report], msgspec.Struct]


STUDIES: dict[str, tuple[str, str, str]] = {
    "operators": ("operators.study", "OperatorsArguments", "list_operators"),
    "layers": ("layers.study", "LayersArguments", "measure_layers"),
    "budget": ("budget", "BudgetArguments", "draw_budget"),
    "tape": ("tape", "TapeArguments", "read_tape"),
    "timeline": ("timeline", "TimelineArguments", "draw_timeline"),
    "memory": ("memory", "MemoryArguments", "read_memory"),
    "operator": ("operator_call", "OperatorCallArguments", "follow_call"),
    "rms-norm": ("rms_norm", "RmsNormArguments", "compare_rms_norm"),
    "probes": ("probes.study", "ProbesArguments", "run_probe"),
}
"""Every study by its module and the names of its arguments' type and of its function: a row for a new one."""


def find(name: str) -> LoadedStudy:
    """The study `name`. Raises StudyError, which lists the known names, for any other."""
    if name not in STUDIES:
        raise StudyError("not_found", f"no study '{name[:64]}'; try one of {', '.join(STUDIES)}", "study")
    module, arguments, function = STUDIES[name]
    # Imported when it is first run: some import a compiler.
    found = import_module(f"service.anatomy.{module}")
    return LoadedStudy(getattr(found, arguments), getattr(found, function))


def run(bench: Bench, name: str, arguments: bytes, report: Report) -> msgspec.Struct:
    """Run the study `name` with `arguments` as JSON. Raises StudyError for arguments that cannot work."""
    study = find(name)
    try:
        decoded = msgspec.json.decode(arguments, type=study.arguments)
    except msgspec.DecodeError as error:
        raise StudyError("invalid_request", f"{name}: {error}") from None
    return study.run(bench, decoded, report)


def main(settings: EngineSettings, name: str, arguments: dict[str, Any], as_json: bool) -> None:
    """Run the study `name` with those of `arguments` that are not None, and print its finding.

    Raises StudyError, with the remedy, for arguments or settings that cannot work.
    """
    given = {key: value for key, value in arguments.items() if value is not None}
    with progress(Console(stderr=True)) as report:
        report("loading the model")
        found = run(prepare_bench(settings), name, msgspec.json.encode(given), report)
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=160)  # a pipe has no width, and rich would take 80 columns for it
    show(found, console)


def further_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse 'NAME=VALUE': the value is JSON, else text. Raises StudyError without a '='."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise StudyError("invalid_request", f"--set {pair}: write NAME=VALUE", "set")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found


@contextmanager
def progress(console: Console) -> Iterator[Report]:
    """Yields a `Report` for the body: a terminal shows the newest line, anything else all of them."""
    if not console.is_terminal:
        yield lambda text, *_: console.print(text, soft_wrap=True, markup=False)
        return
    with console.status("") as status:
        yield lambda text, *_: status.update(text)
