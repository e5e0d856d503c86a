"""Runs a study in the command line's own process: progress to stderr, the finding as tables or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console

from service.anatomy import studies
from service.anatomy.common import Report, StudyError
from service.anatomy.prepared_bench import prepare_bench
from service.anatomy.tape.study import own_expressions
from service.records import EngineSettings

PIPE_COLUMNS = 160


def main(settings: EngineSettings, name: str, arguments: dict[str, Any], as_json: bool) -> None:
    """Run the study `name` with those of `arguments` that are not None, and print its finding.

    Raises StudyError, with the remedy, for arguments or settings that cannot work.
    """
    own_expressions.set(True)  # the user of a command line can run any Python already
    given = {key: value for key, value in arguments.items() if value is not None}
    with progress(Console(stderr=True)) as report:
        report("loading the model")
        found = studies.run(prepare_bench(settings), name, msgspec.json.encode(given), report)
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        studies.shown(name)(found, _output())


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
