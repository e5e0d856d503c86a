"""The studies by name: which arguments each takes, what runs it, and what shows its finding in a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import msgspec
from rich.console import Console

from service.anatomy.errors import StudyError
from service.measure.cases import Bench

Say = Callable[[str], None]
"""Told, in a few words, what a study is doing now."""


@dataclass(frozen=True, slots=True)
class Study:
    """One experiment, loaded: `run` gets a bench, the arguments and somebody to tell of its progress."""

    arguments: type[msgspec.Struct]
    run: Callable[[Bench, Any, Say], msgspec.Struct]


@dataclass(frozen=True, slots=True)
class StudyEntry:
    """Where a study lives: its room below `service.anatomy`, its arguments' type and its function."""

    room: str
    arguments: str
    function: str

    def load(self) -> Study:
        """Import it; each study is imported only once somebody wants it."""
        module = import_module(f"service.anatomy.{self.room}.study")
        return Study(getattr(module, self.arguments), getattr(module, self.function))


STUDIES: dict[str, StudyEntry] = {
    "operators": StudyEntry("operators", "OperatorsArguments", "list_operators"),
    "layers": StudyEntry("layers", "LayersArguments", "measure_layers"),
    "budget": StudyEntry("budget", "BudgetArguments", "draw_budget"),
    "tape": StudyEntry("tape", "TapeArguments", "read_tape"),
    "timeline": StudyEntry("timeline", "TimelineArguments", "draw_timeline"),
    "memory": StudyEntry("memory", "MemoryArguments", "read_memory"),
    "rms_norm": StudyEntry("rms_norm", "RmsNormArguments", "compare_rms_norm"),
    "probes": StudyEntry("probes", "ProbesArguments", "run_probe"),
}
"""Every study there is; a new one is one more row."""


def find(name: str) -> Study:
    """The study called `name`. Raises StudyError, naming those there are, for any other."""
    if name not in STUDIES:
        raise StudyError("not_found", f"no study '{name[:64]}'; try one of {', '.join(STUDIES)}", "study")
    return STUDIES[name].load()


def run(bench: Bench, name: str, arguments: bytes, say: Say) -> msgspec.Struct:
    """Run the study `name` with `arguments` as JSON. Raises StudyError for what cannot work."""
    study = find(name)
    try:
        decoded = msgspec.json.decode(arguments, type=study.arguments)
    except msgspec.DecodeError as error:
        raise StudyError("invalid_request", f"{name}: {error}") from None
    return study.run(bench, decoded, say)


def shown(name: str) -> Callable[[Any, Console], None]:
    """What prints a finding of study `name` as tables on a console."""
    show: Callable[[Any, Console], None] = import_module(f"service.anatomy.{STUDIES[name].room}.show").show
    return show
