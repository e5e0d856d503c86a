"""Starts a service as a child process, which ends with the block that uses it, or with this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from service.protocol.parent_death import owned

SERVING = "launchbound: serving on "
ENGINE = "launchbound engine: "
STOP_SECONDS = 30.0


class LaunchError(RuntimeError):
    """The service did not start; the message has the last line of its log."""


@contextmanager
def launched(
    options: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run `launchbound serve OPTIONS` on a free port of this machine; gives its URL, not yet warm.

    Its output goes to `log`. Raises LaunchError where it ends before it listens.
    """
    command = owned([sys.executable, "-m", "launchbound", "serve", "--port", "0", *options])
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environment or {})},
            # Ctrl-C must reach only the launching process, which then terminates the service.
            start_new_session=True,
        )
        try:
            yield _url(process, log)
        finally:
            _end(process)


def _url(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(SERVING):
            return line.removeprefix(SERVING).strip()
    raise LaunchError(f"the service ended before it listened: {last_log_line(log)}")


def last_log_line(log: Path) -> str:
    """Why a service ended, from its log: the last line of its engine, else its own last line."""
    lines = log.read_text(errors="replace").strip().splitlines()
    of_engine = [line.removeprefix(ENGINE) for line in lines if line.startswith(ENGINE)]
    return (of_engine or lines or ["it logged nothing"])[-1]


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
