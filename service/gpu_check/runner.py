"""Runs one section in a process of its own: whatever becomes of that, it ends here, and says how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Literal

from service.gpu_check.plan import Section
from service.gpu_check.rows import PATH_VARIABLE, read_rows

ROOT = Path(__file__).resolve().parents[2]
GRACE_SECONDS = 10.0
"""After SIGTERM, for what a section has started to be ended by itself."""

DETAIL_CHARACTERS = 160

How = Literal["done", "failed", "killed", "timed out", "not begun"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a section ended: `rows` are on disk whatever happened; `garbage` lines there are no rows."""

    name: str
    how: How
    detail: str
    seconds: float
    rows: int
    garbage: int

    @property
    def well(self) -> bool:
        """Whether the section did all that it was to do."""
        return self.how == "done"


def run_section(
    section: Section,
    folder: Path,
    environment: Mapping[str, str],
    limit_seconds: float,
    grace_seconds: float = GRACE_SECONDS,
) -> Ended:
    """Run `section` for at most `limit_seconds`.

    Its rows go to NAME.jsonl in `folder`, its output to NAME.out and NAME.log. It has a session of its own,
    which is ended with it: compile workers too, and a service that it started.
    """
    began = monotonic()
    files = {end: folder / f"{section.name}.{end}" for end in ("jsonl", "out", "log")}
    with files["out"].open("ab") as out, files["log"].open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "service.gpu_check.begin", str(os.getpid()), *section.command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            cwd=ROOT,
            env={**environment, PATH_VARIABLE: str(files["jsonl"].resolve())},
            start_new_session=True,
        )
        timed_out = False
        try:
            child.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end_session(child, grace_seconds)
    rows, garbage = read_rows(files["jsonl"])
    how, detail = _verdict(child.returncode, timed_out, limit_seconds, files["log"])
    if how == "done" and section.writes_rows and not rows:
        how, detail = "failed", "ended well, but wrote no row"
    if garbage:
        detail = f"{detail}; {garbage} lines of its file are no rows".removeprefix("; ")
    return Ended(section.name, how, detail, monotonic() - began, len(rows), garbage)


def not_begun(section: Section, why: str) -> Ended:
    """The ending of a section that was never started."""
    return Ended(section.name, "not begun", why, 0.0, 0, 0)


def _end_session(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """End what is left of the child's session, itself included: it leads both session and group."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace_seconds)
    # Nobody is left where the child ended and took all with it.
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    # Not for ever: a process that hangs inside a driver cannot be killed, and the next section can still run.
    with suppress(subprocess.TimeoutExpired):
        child.wait(grace_seconds)


def _verdict(code: int | None, timed_out: bool, limit_seconds: float, log: Path) -> tuple[How, str]:
    if timed_out or code is None:
        lives = "; it could not be killed" if code is None else ""
        return "timed out", f"still running after {limit_seconds:.0f} s{lives}{_last_line(log)}"
    if code < 0:
        return "killed", f"by {signal.Signals(-code).name}{_last_line(log)}"
    if code:
        return "failed", f"exit code {code}{_last_line(log)}"
    return "done", ""


def _last_line(log: Path) -> str:
    """': ' and the last line that the section wrote to its log; '' where there is none."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:DETAIL_CHARACTERS]}" if lines else ""
