"""Starts a service as a child process, which ends with the block that uses it, or with this process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from service.parent_death import owned

SERVING = "launchbound: serving on "
STOP_SECONDS = 30.0

ENDED_WITHIN_SECONDS = 10.0
"""How long a service whose connections are closed may take to end: it closes them first."""

_HEAD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (\w+) +([\w.]+) +(.*)")

QUIET, READABLE = {"LAUNCHBOUND_LOG_REQUESTS": "failed"}, {"LAUNCHBOUND_LOG_FORMAT": "text"}


class LaunchError(RuntimeError):
    """The service did not start, or has ended; the message has the last line of its log."""


@contextmanager
def launched(
    options: Sequence[str],
    log: Path,
    environment: Mapping[str, str | None] | None = None,
    *,
    lost: tuple[type[Exception], ...] = (),
) -> Iterator[str]:
    """Run `launchbound serve OPTIONS` on a free port of this machine; gives its URL, not yet warm.

    Its log goes to `log`, as text, in which `last_log_line` reads, and without a line for every request that
    ends well: who launches a service to measure it keeps rows of its own, and disks are slow. A variable of
    `environment` that is None is unset.

    Raises LaunchError where it ends before it listens, and where it has ended when the block raises one of
    `lost`: what the caller's client raises where nothing answers.
    """
    variables = {**QUIET, **os.environ, **(environment or {}), **READABLE}
    command = owned([sys.executable, "-m", "launchbound", "serve", "--port", "0", *options])
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={name: value for name, value in variables.items() if value is not None},
            # Ctrl-C must reach only the launching process, which then terminates the service.
            start_new_session=True,
        )
        try:
            yield _url(process, log)
        except lost as error:
            if _has_ended(process):
                raise LaunchError(f"the service ended: {last_log_line(log)}") from error
            raise
        finally:
            _end(process)


def _url(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(SERVING):
            return line.removeprefix(SERVING).strip()
    raise LaunchError(f"the service ended before it listened: {last_log_line(log)}")


def last_log_line(log: Path) -> str:
    """Why a service ended, from its log: the last warning of its engine, else its own last line."""
    lines = log.read_text(errors="replace").strip().splitlines()
    read = [found for line in lines if (found := read_text(line)) is not None]
    of_engine = [line.message for line in read if (line.component, line.level) == ("engine", "warning")]
    last = [found.message if (found := read_text(line)) else line for line in lines[-1:]]
    return (of_engine or last or ["it logged nothing"])[-1]


class ReadLine(NamedTuple):
    """What a line of text says."""

    level: str
    component: str
    message: str


def read_text(line: str) -> ReadLine | None:
    """A line of `TextFormatter`; None for any other."""
    found = _HEAD.fullmatch(line)
    return ReadLine(*found.groups()) if found else None


def _has_ended(process: subprocess.Popen[str]) -> bool:
    try:
        process.wait(ENDED_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        if process.stdout is not None:
            process.stdout.close()
