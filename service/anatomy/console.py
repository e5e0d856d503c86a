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
from service.anatomy.errors import StudyError
from service.anatomy.progress import Report
from service.anatomy.tape.computations import own_expressions
from service.measure.cases import Bench
from service.protocol.messages import EngineSettings
from service.protocol.placement import pin
from service.step.process_state import prepare_process
from service.step.profiling import warm_profiler

PIPE_COLUMNS = 160


def main(settings: EngineSettings, name: str, arguments: dict[str, Any], as_json: bool) -> None:
    """Run the study `name` with those of `arguments` that are not None, and print its finding.

    Raises StudyError, with the remedy, for arguments or settings that cannot work.
    """
    own_expressions.set(True)  # the user of a command line can run any Python already
    given = {key: value for key, value in arguments.items() if value is not None}
    with _progress(Console(stderr=True)) as report:
        report("loading the model")
        bench = open_bench(settings)
        found = studies.run(bench, name, msgspec.json.encode(given), report)
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        studies.shown(name)(found, _output())


def open_bench(settings: EngineSettings) -> Bench:
    """Make this process one for studies: its bench. Raises StudyError for settings that cannot work."""
    try:
        prepare_process(settings.cache_folder)
        bench = Bench(settings)
    except ValueError as error:
        raise StudyError("invalid_request", str(error)) from error
    # The engine's cores, so that both measure the same ones.
    pin(bench.cpus)
    if bench.device.type == "cuda":
        warm_profiler(bench.device)
    return bench


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
def _progress(console: Console) -> Iterator[Report]:
    """Yields a `Report` for the body: a terminal shows the newest line, anything else all of them."""
    if not console.is_terminal:
        yield lambda text, *_: console.print(text, soft_wrap=True, markup=False)
        return
    with console.status("") as status:
        yield lambda text, *_: status.update(text)
