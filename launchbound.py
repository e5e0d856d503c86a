"""The command line. Exit codes: 0 good, 1 a gate or check failed, 2 bad input; `compare` has 3, undecided."""

from __future__ import annotations

import typer

from service.cli import check, compare, peers, serve, study, sweep

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serve a transformer through PyTorch's inference modes, and measure where each request's time went.",
)

for commands in (serve, sweep, compare, check, study, peers):
    app.add_typer(commands.app)


if __name__ == "__main__":
    app(prog_name="launchbound")
