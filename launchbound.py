"""The command line, under whatever system a process has. Its exit codes are `EXIT_CODES`."""

from __future__ import annotations

import codecs
import errno
import locale
import os
import site
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from service.cli import check, fleet, peers, report, run, serve, study, sweep
from service.cli.options import EXIT_BAD_INPUT, EXIT_CODES, EXIT_MACHINE, bad_input


class CommandLine(typer.Typer):
    """The commands as the program of this process, which any user may start under any locale and limit."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as Typer has it
        with any_system():
            return super().__call__(*arguments, **options)


class Commands(TyperGroup):
    """The commands, of which each says in one line why it refuses a value, and has paragraphs in its help."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - Typer's types of them are private
        found = super().get_command(ctx, cmd_name)
        if found is not None and found.help:
            # Typer would break all paragraphs but the first where the lines of the docstring end.
            paragraphs = [" ".join(one.split()) for one in found.help.split("\n\n")]
            # Of the first the list of commands would show a part.
            found.help, found.short_help = "\n\n".join(paragraphs), paragraphs[0]
        return found

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer's type of it is private
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # Pydantic, which reads values, says first that they were refused.
            bad_input(" ".join(error.format_message().replace("Value error, ", "").split()))


app = CommandLine(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # With frames a help takes twice as long: they come with a parser of Markdown and one of languages.
    rich_markup_mode=None,
    # Lines end where the terminal does, and not at 80 characters.
    context_settings={"max_content_width": 1000},
    epilog=EXIT_CODES,
    help="Serve a transformer through PyTorch's inference modes, and measure where each request's time went.",
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

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
    serve.app, run.app, sweep.app, report.app, report.compare_app, check.app, study.app, peers.app, fleet.app,
):  # fmt: skip
    app.add_typer(commands)


_OF_A_PATH = frozenset({
    errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR,
    errno.EPERM, errno.EROFS,
})  # fmt: skip
"""A file or folder is not what it must be; all other errors are of the machine."""

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or ask for a larger quota",
    errno.EFBIG: "raise the limit of a file's size (`ulimit -f`)",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENOMEM: "free some memory",
    errno.EAGAIN: "raise the limit of processes (`ulimit -u`)",
}


@contextmanager
def any_system() -> Iterator[None]:
    """Run a command in the block, under whatever streams, locale and user this process has.

    May become this program again, in another encoding. Ends with exit code 2 where a path is at fault, and
    with 4 where the machine is, also for output that cannot be written.
    """
    _open_closed_streams()
    _speak_utf8()
    _import_ours()
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]  # of a terminal whose width nobody knows: a help of no width shows nothing
    try:
        _refuse_unusable()
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        _end_with(error)


def _open_closed_streams() -> None:
    """Open those that the caller has closed (`>&-`): a file or a socket would take their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _speak_utf8() -> None:
    """Read and write files and streams in UTF-8 whatever the locale, here and in every process to come."""
    if not sys.flags.utf8_mode and codecs.lookup(locale.getencoding()).name != "utf-8":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _import_ours() -> None:
    """Have every process to come import our packages, though the current folder may have `models` as well."""
    os.environ["PYTHONSAFEPATH"] = "1"
    here = os.path.dirname(os.path.abspath(__file__))
    given = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    # Installed packages come last in any case, behind Python's own library.
    if here not in (*given, *site.getsitepackages()):
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *given])


def _refuse_unusable() -> None:
    """End where a name cannot be written to JSON, which is UTF-8, and where nothing temporary can be kept."""
    try:
        folder = tempfile.gettempdir()
    except OSError:
        _end("no temporary folder can be written to: set TMPDIR to one that can", EXIT_BAD_INPUT)
    named = {name: value for name, value in os.environ.items() if name.startswith("LAUNCHBOUND_")}
    named |= {"TMPDIR": folder, "the installation": sys.prefix, "its code": __file__}
    named |= {f"argument {number}": text for number, text in enumerate(sys.argv[1:], 1)}
    for what, text in named.items():
        if text != text.encode(errors="replace").decode():
            _end(f"{what} is no UTF-8 ({text!a}): rename it, or name another", EXIT_BAD_INPUT)
    if "TMPDIR" in os.environ:
        os.environ["TMPDIR"] = folder  # compilers look no further where it cannot be used


def _end_with(error: OSError) -> NoReturn:
    if error.errno == errno.EPIPE:
        _drop_output()
        raise SystemExit(EXIT_MACHINE) from None  # who closed it wants no more words
    said = error.strerror or str(error)
    if error.filename is not None:
        said = f"{error.filename}: {said}"
    if error.errno in _OF_A_PATH and error.filename is not None:
        _end(f"{said}: name another place, or give this user the right to it", EXIT_BAD_INPUT)
    _end(f"{said}: {_REMEDIES.get(error.errno or 0, 'mend that')}, then run this again", EXIT_MACHINE)


def _end(message: str, code: int) -> NoReturn:
    _drop_output()
    try:
        print(f"launchbound: {message}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise SystemExit(code) from None


def _drop_output() -> None:
    """Have what could not be written go nowhere, else the interpreter tries again as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    app(prog_name="launchbound")
