"""The command line. Exit codes: 0 good, 1 a gate or check failed, 2 bad input."""

from __future__ import annotations

import typer

from service.cli import checking, serving, studying, sweeping

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serve a transformer through PyTorch's inference modes, and measure where each request's time went.",
)

for verbs in (serving, sweeping, checking, studying):
    app.add_typer(verbs.app)


if __name__ == "__main__":
    app(prog_name="launchbound")
