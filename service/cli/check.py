"""The commands that check: `parity` and `selftest`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import (
    BatchSizes,
    Device,
    Dtype,
    Model,
    Modes,
    bad_input,
    settings_from,
    split_list,
)
from service.cli.signals import ended_in_order

app = typer.Typer()


@app.command()
def parity(
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
    batch_sizes: BatchSizes = None,
) -> None:
    """Run every mode teacher-forced beside eager, and report whether it still computes the same."""
    settings = settings_from(model=model, device=device, dtype=dtype, modes=modes, batch_sizes=batch_sizes)
    from service.cli.parity import check_parity

    try:
        raise typer.Exit(check_parity(settings.engine_settings("")))
    except ValueError as error:
        bad_input(error)


@app.command()
def selftest(
    only: Annotated[str | None, typer.Option(help="Checks to run, with commas; a partial selftest.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default results/selftest-<UTC>-<commit>.")] = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
) -> None:
    """Prove on this machine that the numbers are right; 20 to 40 minutes, exit code 1 where a row fails.

    Complete, and so shown by reports, only with every check, the default model, dtype and modes, and no
    uncommitted change.
    """
    settings = settings_from(model=model, device=device, dtype=dtype, modes=modes)
    from service.proof.runner import main

    try:
        with ended_in_order():
            raise typer.Exit(main(settings, split_list(only), out))
    except ValueError as error:
        bad_input(error)
