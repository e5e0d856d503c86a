"""`launchbound parity`: the warm-up's parity check of every mode, without a service around it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from service.engine.inbox import LocalInbox
from service.engine.loop import Engine
from service.records import EngineSettings, ModeStatus, ToFront
from service.step.process_state import prepare_process


def check_parity(settings: EngineSettings) -> int:
    """Warm every mode up and print how far its logits are from eager's; 0 if all pass, else 1.

    Raises ValueError, with the remedy, for settings that cannot work.
    """
    console = Console()

    def watch(message: ToFront) -> None:
        if isinstance(message, ModeStatus) and message.state == "warming":
            console.print(f"{message.mode}: warming up (compiled modes take up to two minutes at first)")

    inbox = LocalInbox([], watch)
    prepare_process(settings.cache_folder, settings.model)
    Engine(settings, inbox).run()
    table = Table("mode", "runs as", "largest logit difference", "tolerance", "tokens that differ", "parity")
    for status in inbox.modes.values():
        verdict = status.parity
        numbers = (
            ("–", "–", "–")
            if verdict is None
            else (
                f"{verdict.max_abs_logit_difference:.2e}",
                f"{verdict.tolerance:.2e}",
                f"{verdict.differing_tokens} of {verdict.positions} (near ties {verdict.near_ties})",
            )
        )
        passed = verdict is not None and verdict.passed
        table.add_row(status.mode, status.effective, *numbers, "yes" if passed else f"NO: {status.detail}")
    console.print(table)
    return 0 if all(s.parity is not None and s.parity.passed for s in inbox.modes.values()) else 1
