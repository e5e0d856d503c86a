"""Measures the lessons of this machine in this process, keeps the findings and writes their page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from service.anatomy.console import progress
from service.anatomy.errors import StudyError
from service.anatomy.lessons.findings import write
from service.anatomy.lessons.measure import MODES, measure
from service.anatomy.lessons.page import PAGE, SUFFIX, page_of
from service.anatomy.prepared_bench import prepare_bench
from service.protocol.messages import EngineSettings


def main(settings: EngineSettings, out: Path, rounds: int) -> None:
    """Measure with `settings`, keep the findings in `out` and write docs/lessons.md from them.

    Raises StudyError, with the remedy, for settings that cannot work.
    """
    if missing := [mode for mode in MODES if mode not in settings.modes]:
        raise StudyError(
            "invalid_request", f"the lessons compare {', '.join(MODES)}: add {', '.join(missing)}"
        )
    if not out.name.endswith(SUFFIX):
        raise StudyError("invalid_request", f"{out.name}: let the name of the folder end in {SUFFIX}", "out")
    out.mkdir(parents=True, exist_ok=True)  # before the minutes that measuring takes
    with progress(Console(stderr=True)) as report:
        report("loading the model")
        write(measure(prepare_bench(settings), rounds, report), out)
    write_page(out)
    print(out)


def write_page(folder: Path) -> None:
    """Write docs/lessons.md from the findings in `folder`. Raises ValueError for another format."""
    PAGE.write_text(page_of(folder), encoding="utf-8")
    print(PAGE)
