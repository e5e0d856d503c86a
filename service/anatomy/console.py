"""A study in the command line's own process: progress on stderr, the finding as tables or as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console

from service.anatomy import studies
from service.anatomy.errors import StudyError
from service.anatomy.tape.computations import own_expressions
from service.measure.cases import Bench
from service.protocol.messages import EngineSettings
from service.protocol.placement import pin
from service.step.process_state import prepare_process

PIPE_COLUMNS = 160


def main(settings: EngineSettings, name: str, arguments: dict[str, Any], as_json: bool) -> None:
    """Run the study `name` with those of `arguments` that are not None, and print what it found.

    Raises StudyError, with the remedy, for what cannot work.
    """
    prepare_process(settings.cache_folder)
    own_expressions.set(True)  # whoever has this command line has Python anyway
    given = {key: value for key, value in arguments.items() if value is not None}
    with _progress(Console(stderr=True)) as say:
        say("loading the model")
        try:
            bench = Bench(settings)
        except ValueError as error:
            raise StudyError("invalid_request", str(error)) from error
        # Where the engine would run, so that both measure the same cores.
        pin(bench.cpus, exempt=set())
        found = studies.run(bench, name, msgspec.json.encode(given), say)
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        studies.shown(name)(found, _output())


def _output() -> Console:
    """Where tables go; a pipe or file has no width, and would get that of an old terminal."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE_COLUMNS)


def further_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """'NAME=VALUE' as people write it: the value as JSON, else as text. Raises StudyError without a '='."""
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
def _progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Gives what shows words while the body runs: in one line of a terminal, else line after line."""
    if not console.is_terminal:
        yield lambda words: console.print(words, soft_wrap=True, markup=False)
        return
    with console.status("") as status:
        yield status.update
