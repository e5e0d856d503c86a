"""The studies by name: which arguments each takes, what runs it, and what shows its finding in a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import msgspec
from rich.console import Console

from service.anatomy.common import Report, StudyError
from service.measure.cases import Bench


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
    "budget": StudySpec("budget.study", "BudgetArguments", "draw_budget", "budget.show"),
    "tape": StudySpec("tape.study", "TapeArguments", "read_tape"),
    "timeline": StudySpec("timeline.study", "TimelineArguments", "draw_timeline"),
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
