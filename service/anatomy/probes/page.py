"""Writes docs/probes.md: what every probe prints on one machine."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from pathlib import Path

from rich.console import Console

from service.anatomy.console import progress
from service.anatomy.errors import StudyError
from service.anatomy.prepared_bench import Machine, machine_of, prepare_bench
from service.anatomy.probes.show import show
from service.anatomy.probes.study import ProbesArguments, run_probe
from service.anatomy.probes.table import TABLE
from service.anatomy.progress import Report, named
from service.measure.cases import Bench
from service.protocol.messages import EngineSettings
from service.protocol.probes import PROBES

PAGE = Path(__file__).parents[3] / "docs" / "probes.md"

COLUMNS = 110

_INTRODUCTION = """# Probes: one pitfall each, live

A probe puts one pitfall into the served step, or into a small operation beside it, and takes it out again:
both timings in interleaved pairs with 95 % intervals, the counter that moved, the line to blame, the cure.
`launchbound probe NAME` prints what stands below, and `POST /v1/probes/NAME` answers with the same as JSON,
while the engine is paused; `GET /v1/probes` lists them. A probe leaves no trace in its process. The verdict
names a difference only where the interval of the ratio excludes 1; on a busy machine run it again, with
more repeats (`--set repeats=201`)."""


def page_of(machine: Machine, repeats: int, outputs: Iterable[tuple[str, str]]) -> str:
    """The page of probes' `outputs` by name."""
    source = (
        f"Measured here: {machine}.\n{repeats} pairs, fewer where each one compiles. "
        "`launchbound probe-page` runs them all and writes this page."
    )
    sections = [f"## {name}\n\n{_capital(PROBES[name])}.\n\n```\n{text}\n```" for name, text in outputs]
    return "\n\n".join([_INTRODUCTION, source, *sections]) + "\n"


def main(settings: EngineSettings, repeats: int) -> None:
    """Run every probe and write the page. Raises StudyError for settings that cannot work."""
    with progress(Console(stderr=True)) as report:
        report("loading the model")
        bench = prepare_bench(settings)
        outputs = [(name, output_of(bench, name, repeats, report)) for name in TABLE]
    PAGE.write_text(page_of(machine_of(bench), repeats, outputs), encoding="utf-8")
    print(PAGE)


def output_of(bench: Bench, name: str, repeats: int, report: Report) -> str:
    """What `launchbound probe` prints of `name`, its refusal included."""
    try:
        arguments = ProbesArguments(name=name, repeats=repeats)
        found = run_probe(bench, arguments, named(name, report))
    except StudyError as error:
        return f"launchbound: {error}"
    text = StringIO()
    show(found, Console(file=text, width=COLUMNS))
    return "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
