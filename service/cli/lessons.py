"""The commands that write pages of measurements: `lessons` and `probe-page`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import Device, Dtype, Model, bad_input, settings_from

app = typer.Typer()

Rounds = Annotated[int, typer.Option(min=6, help="Repeats behind every interval.")]


@app.command()
def lessons(
    out: Annotated[Path | None, typer.Option(help="A folder whose name ends in -lessons.")] = None,
    rounds: Rounds = 25,
    page_only: Annotated[bool, typer.Option("--page-only", help="From the newest findings.")] = False,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Measure what the field's texts quote, and write docs/lessons.md; some minutes.

    The findings are kept in `out`, by default benchmarks/DATE-MACHINE-COMMIT-lessons.
    """
    settings = settings_from(model=model, device=device, dtype=dtype)
    from service.anatomy.errors import StudyError
    from service.anatomy.lessons.page import newest
    from service.anatomy.lessons.run import main, write_page

    try:
        if page_only:
            write_page(out or newest())
        else:
            main(settings.engine_settings(""), out or _folder(settings.device), rounds)
    except (StudyError, LookupError, ValueError) as error:
        bad_input(error)


@app.command("probe-page")
def probe_page(
    repeats: Annotated[int, typer.Option(min=6, max=1001, help="Pairs of each probe.")] = 41,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Run every probe, and write docs/probes.md with what each printed; some minutes."""
    settings = settings_from(model=model, device=device, dtype=dtype)
    from service.anatomy.errors import StudyError
    from service.anatomy.probes.page import main

    try:
        main(settings.engine_settings(""), repeats)
    except StudyError as error:
        bad_input(error)


def _folder(device: str) -> Path:
    """benchmarks/20261122-epyc2-1ff67aab-lessons, by the day, the machine and the commit."""
    from service.anatomy.lessons.page import KEPT, SUFFIX
    from service.anatomy.prepared_bench import machine_label
    from service.front.machine import build_commit

    day = datetime.now(UTC).strftime("%Y%m%d")
    return KEPT / f"{day}-{machine_label(device)}-{build_commit(None)[:8]}{SUFFIX}"
