"""A service of one's own: started as a process, ended with the block that uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

SERVING = "launchbound: serving on "
ENGINE = "launchbound engine: "
STOP_SECONDS = 30.0


class LaunchError(RuntimeError):
    """The service did not come up; the message has its last words."""


@contextmanager
def launched(
    options: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run `launchbound serve OPTIONS` on a free port of this machine; gives its URL, not yet warm.

    Its output goes to `log`. Raises LaunchError where it ends before it listens.
    """
    command = [sys.executable, "-m", "launchbound", "serve", "--port", "0", *options]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environment or {})},
            # A Ctrl-C is meant for whoever launched the service, which then ends it in order.
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
    raise LaunchError(f"the service ended before it listened: {last_words(log)}")


def last_words(log: Path) -> str:
    """Why a service ended, from its log: what its engine said last, else its own last line."""
    words = log.read_text(errors="replace").strip().splitlines()
    said = [line.removeprefix(ENGINE) for line in words if line.startswith(ENGINE)]
    return (said or words or ["without a word"])[-1]


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
