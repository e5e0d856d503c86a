"""The command line. Its exit codes are `EXIT_CODES`."""

from __future__ import annotations

import typer

from service.cli import check, compare, fleet, lessons, peers, report, serve, study, sweep
from service.cli.options import EXIT_CODES

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
    help="Serve a transformer through PyTorch's inference modes, and measure where each request's time went.",
)

for commands in (serve, sweep, report, compare, check, study, lessons, peers, fleet):
    app.add_typer(commands.app)


if __name__ == "__main__":
    app(prog_name="launchbound")
