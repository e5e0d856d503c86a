"""The studies by name: which arguments each takes, what runs it, and what shows its finding in a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import msgspec
from rich.console import Console

from service.anatomy.common import Report, StudyError, own_expressions, prepare_bench
from service.measure.cases import Bench
from service.records import EngineSettings


@dataclass(frozen=True, slots=True)
class LoadedStudy:
    """A study, imported: `run` takes a bench, the decoded arguments and where to report progress."""

    arguments: type[msgspec.Struct]
    run: Callable[[Bench, Any, Report], msgspec.Struct]


@dataclass(frozen=True, slots=True)
class StudySpec:
    """Where a study is: its module below `service.anatomy`, and the names of its type and function.

    `shown_by` is the module of its `show`, where that is another one.
    """

    module: str
    arguments: str
    function: str
    shown_by: str | None = None

    def load(self) -> LoadedStudy:
        """Import it. A study is imported when it is first run, as some import a compiler."""
        module = import_module(f"service.anatomy.{self.module}")
        return LoadedStudy(getattr(module, self.arguments), getattr(module, self.function))


STUDIES: dict[str, StudySpec] = {
    "operators": StudySpec("operators.study", "OperatorsArguments", "list_operators", "operators.show"),
    "layers": StudySpec("layers.study", "LayersArguments", "measure_layers"),
    "budget": StudySpec("budget", "BudgetArguments", "draw_budget"),
    "tape": StudySpec("tape.study", "TapeArguments", "read_tape"),
    "timeline": StudySpec("timeline", "TimelineArguments", "draw_timeline"),
    "memory": StudySpec("memory", "MemoryArguments", "read_memory"),
    "operator": StudySpec("operator_call", "OperatorCallArguments", "follow_call"),
    "instructions": StudySpec("instructions", "InstructionsArguments", "count_instructions"),
    "rms-norm": StudySpec("rms_norm", "RmsNormArguments", "compare_rms_norm"),
    "probes": StudySpec("probes.study", "ProbesArguments", "run_probe"),
}
"""Every study; a new one is one more row."""


def find(name: str) -> LoadedStudy:
    """The study `name`. Raises StudyError, which lists the known names, for any other."""
    if name not in STUDIES:
        raise StudyError("not_found", f"no study '{name[:64]}'; try one of {', '.join(STUDIES)}", "study")
    return STUDIES[name].load()


def run(bench: Bench, name: str, arguments: bytes, report: Report) -> msgspec.Struct:
    """Run the study `name` with `arguments` as JSON. Raises StudyError for arguments that cannot work."""
    study = find(name)
    try:
        decoded = msgspec.json.decode(arguments, type=study.arguments)
    except msgspec.DecodeError as error:
        raise StudyError("invalid_request", f"{name}: {error}") from None
    return study.run(bench, decoded, report)


def shown(name: str) -> Callable[[Any, Console], None]:
    """The function that prints a finding of study `name` as tables on a console."""
    study = STUDIES[name]
    module = import_module(f"service.anatomy.{study.shown_by or study.module}")
    show: Callable[[Any, Console], None] = module.show
    return show


PIPE_COLUMNS = 160


def main(settings: EngineSettings, name: str, arguments: dict[str, Any], as_json: bool) -> None:
    """Run the study `name` with those of `arguments` that are not None, and print its finding.

    Raises StudyError, with the remedy, for arguments or settings that cannot work.
    """
    own_expressions.set(True)  # the user of a command line can run any Python already
    given = {key: value for key, value in arguments.items() if value is not None}
    with progress(Console(stderr=True)) as report:
        report("loading the model")
        found = run(prepare_bench(settings), name, msgspec.json.encode(given), report)
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        shown(name)(found, _output())


def _output() -> Console:
    """The console for tables. A pipe or file has no width, and rich would take 80 columns for it."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE_COLUMNS)


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
