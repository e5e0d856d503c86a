"""The command line. Its exit codes are `EXIT_CODES`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer

from service.cli import check, fleet, peers, report, serve, study, sweep
from service.cli.options import EXIT_CODES
from service.cli.surroundings import any_system


class CommandLine(typer.Typer):
    """The commands as the program of this process, which any user may start under any locale and limit."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as Typer has it
        with any_system():
            return super().__call__(*arguments, **options)


app = CommandLine(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
    help="Serve a transformer through PyTorch's inference modes, and measure where each request's time went.",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"launchbound {version('launchbound')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


for commands in (
    serve.app, sweep.app, report.app, report.compare_app, check.app, study.app, peers.app, fleet.app,
):  # fmt: skip
    app.add_typer(commands)


if __name__ == "__main__":
    app(prog_name="launchbound")
