"""How a command that measures ends: its last lines and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from service.cli.options import EXIT_FAILED


def last_line(folder: Path, headline: dict[str, Any] | None, valid: bool) -> None:
    """The one JSON document that ends the output."""
    typer.echo(json.dumps({"path": str(folder), "headline": headline, "valid": valid}))


def fail_without_rows(folder: Path, failed: Sequence[str], why: Exception) -> int:
    """Nothing was measured: print failed gates, the reason, and the JSON line."""
    for line in failed:
        typer.echo(line)
    typer.echo(f"launchbound: {why}", err=True)
    last_line(folder, None, valid=False)
    return EXIT_FAILED


def conclude_later(folder: Path, failed: Sequence[str], missing: ModuleNotFoundError, valid: bool) -> None:
    """The report's packages are not here: print failed gates, the remedy, and the JSON line."""
    for line in failed:
        typer.echo(line)
    typer.echo(
        f"{missing.name} is not installed here: the report is made later by `launchbound report {folder}`, "
        "after `pip install '.[report]'`"
    )
    last_line(folder, None, valid)


def pictured(picture: Callable[[Path], bool], folder: Path, interrupted: bool) -> int:
    """Make the page over the runs of `folder`, which says whether all are valid; returns the exit code.

    Raises KeyboardInterrupt where an interruption has left none.
    """
    from loadtests.run.rows import RowsError

    try:
        valid = picture(folder)
    except ModuleNotFoundError as error:
        conclude_later(folder, [], error, valid=False)
        return EXIT_FAILED
    except RowsError as error:
        if interrupted:
            raise KeyboardInterrupt from error
        return fail_without_rows(folder, [], error)
    return 0 if valid else EXIT_FAILED
