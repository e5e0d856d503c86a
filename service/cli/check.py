"""The commands that check: `parity` and `selftest`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import (
    EXIT_FAILED,
    BatchSizes,
    Device,
    Dtype,
    Json,
    Model,
    Modes,
    bad_input,
    ended_in_order,
    print_result,
    refuse_module,
    settings_from,
    split_list,
    terminal,
)
from service.modes import swept_modes
from service.nvml import expected_device

if TYPE_CHECKING:
    from service.records import EngineSettings, ModeStatus, ToFront

app = typer.Typer()


@app.command(epilog="Example: launchbound parity --model hf:FOLDER")
def parity(
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
    batch_sizes: BatchSizes = None,
    as_json: Json = False,
) -> None:
    """Run every mode teacher-forced beside eager, and report whether it still computes the same."""
    settings = settings_from(model=model, device=device, dtype=dtype, modes=modes, batch_sizes=batch_sizes)
    try:
        statuses = _parity(settings.engine_settings(""))
    except ValueError as error:
        bad_input(error)
    passed = all(one.parity is not None and one.parity.passed for one in statuses)
    if as_json:
        import msgspec

        print_result({"passed": passed, "modes": msgspec.to_builtins(statuses)})
    raise typer.Exit(0 if passed else EXIT_FAILED)


def _parity(settings: EngineSettings) -> list[ModeStatus]:
    """Warm every mode up, without a service, and print its parity."""
    from service.engine.inbox import LocalInbox
    from service.engine.loop import Engine
    from service.records import ModeStatus
    from service.step.process_state import prepare_process

    console = terminal()

    def watch(message: ToFront) -> None:
        if isinstance(message, ModeStatus) and message.state == "warming":
            console.print(f"{message.mode}: warming up (compiled modes take up to two minutes at first)")

    inbox = LocalInbox([], watch)
    prepare_process(settings.cache_folder, settings.model)
    Engine(settings, inbox).run()
    statuses = list(inbox.modes.values())
    for one in statuses:
        typer.echo(described(one))
    return statuses


def described(status: ModeStatus) -> str:
    """A line that no width of a terminal cuts, with the reason where the mode fails."""
    name = status.mode if status.effective == status.mode else f"{status.mode} (as {status.effective})"
    if (parity := status.parity) is None:
        return f"{name}: NO parity: {status.detail}"
    verdict = "in parity" if parity.passed else f"NO parity: {status.detail}"
    return (
        f"{name}: {verdict}; largest logit difference {parity.max_abs_logit_difference:.2e}, tolerance "
        f"{parity.tolerance:.2e}; {parity.differing_tokens} of {parity.positions} tokens differ, "
        f"{parity.near_ties} near ties"
    )


@app.command(epilog="Example: launchbound selftest --only injected,sampling-rate")
def selftest(
    only: Annotated[
        str | None, typer.Option(help="Checks to run, comma-separated: a partial selftest.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Default results/selftest-<UTC>-<commit>.")] = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
    _json: Json = False,
) -> None:
    """Prove on this machine that the numbers are right; 30 to 45 minutes, exit code 1 where a row fails.

    Complete, and so shown by reports, only with every check, the default model and dtype, the modes of a
    sweep, and no uncommitted change.
    """
    refuse_module(model or os.environ.get("LAUNCHBOUND_MODEL", ""), "the selftest runs a language model")
    swept = modes or ",".join(swept_modes(expected_device(device or "auto")))
    settings = settings_from(model=model, device=device, dtype=dtype, modes=swept)
    from service.proof.runner import main

    try:
        with ended_in_order():
            raise typer.Exit(main(settings, split_list(only), out, print_result))
    except ValueError as error:
        bad_input(error)
