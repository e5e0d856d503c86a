"""Starts a service as a child process, which ends with the block that uses it, or with this process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from service.parent_death import owned

SERVING = "launchbound: serving on "
STOP_SECONDS = 30.0

ENDED_WITHIN_SECONDS = 10.0
"""How long a service whose connections are closed may take to end: it closes them first."""

LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (?P<level>\w+) +(?P<component>[\w.]+) +(?P<message>.*)"
)
"""A line of a service's log, as text."""

SERVE = ("launchbound", "serve", "--port", "0")
"""The module that is run, and its first arguments."""

QUIET, READABLE = {"LAUNCHBOUND_LOG_REQUESTS": "failed"}, {"LAUNCHBOUND_LOG_FORMAT": "text"}


class LaunchError(RuntimeError):
    """The service did not start, or has ended; the message has the last line of its log."""


@contextmanager
def launched(
    options: Sequence[str],
    log: Path,
    environment: Mapping[str, str | None] | None = None,
    *,
    module: Sequence[str] = SERVE,
    lost: tuple[type[Exception], ...] = (),
) -> Iterator[str]:
    """Run `launchbound serve OPTIONS`, or another `module`, on a free port; gives its URL, not yet warm.

    Its log goes to `log`, as text, without a line for every request that ends well. A variable of
    `environment` that is None is unset. Raises LaunchError where it ends before it listens, and where it has
    ended when the block raises one of `lost`: what the caller's client raises where nothing answers.
    """
    variables = {**QUIET, **os.environ, **(environment or {}), **READABLE}
    command = owned([sys.executable, "-m", *module, *options])
    with log.open("ab") as errors, ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={name: value for name, value in variables.items() if value is not None},
                # Ctrl-C must reach only the launching process, which then terminates the service.
                start_new_session=True,
            )
        )
        stack.callback(end, process)
        try:
            yield _url(process, log)
        except lost as error:
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDED_WITHIN_SECONDS)
                raise LaunchError(f"the service ended: {last_log_line(log)}") from error
            raise


def _url(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(SERVING):
            return line.removeprefix(SERVING).strip()
    raise LaunchError(f"the service ended before it listened: {last_log_line(log)}")


def last_log_line(log: Path) -> str:
    """Why a service ended, from its log: the last warning of its engine, else its own last line."""
    lines = log.read_text(errors="replace").strip().splitlines() or ["it logged nothing"]
    found = [one for line in lines if (one := LINE.fullmatch(line))]
    of_engine = [one["message"] for one in found if (one["component"], one["level"]) == ("engine", "warning")]
    last = LINE.fullmatch(lines[-1])
    return of_engine[-1] if of_engine else last["message"] if last else lines[-1]


def end(process: subprocess.Popen[Any]) -> None:
    """Terminate it, and kill it where it has not ended within STOP_SECONDS."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
