"""`make gpu-check`: `python -m service.proof.gpu_check [--only SECTION,…]`.

The CUDA path examined in sections, each a process of its own with a time limit: what it wrote is kept,
whatever becomes of it. The process that runs them makes no CUDA context.

Results go to `$OUT` if that is set, else to `results/`; compiled code and traces to
`$LAUNCHBOUND_CACHE_FOLDER` if that is set, else to `.cache/gpu-check`, where the next check finds them warm.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import gmtime, monotonic, strftime
from typing import Literal, NamedTuple

if __name__ == "__main__":  # before the imports below, which need these packages as the sections do
    for name in ("torch", "msgspec", "rich", "numpy", "scipy", "psutil", "safetensors", "tokenizers"):
        if find_spec(name) is None:
            sys.exit(f"gpu-check: {sys.executable} lacks {name}: install it or give another one as PYTHON=")

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadtests.run.folder import git_state
from service.parent_death import owned
from service.proof.gpu_goals import PATH_VARIABLE, Goal, goals_of, read_records
from service.proof.rows import STYLES

ROOT = Path(__file__).resolve().parents[2]
FORMAT_VERSION = 5
SUMMARY_FILE = "summary.json"
MOST_SECONDS = 480.0
"""All sections together: a GPU is lent for minutes."""

LEAST_SECONDS = 5.0
"""A section has this long even where earlier ones were late to end."""

GRACE_SECONDS = 10.0
"""After SIGTERM, for a section to end what it has started."""


class Section(NamedTuple):
    """`command` are arguments of the interpreter; `seconds` is its limit, `about` what it finds out."""

    name: str
    seconds: float
    about: str
    command: tuple[str, ...]


_MODULE = ("-m", "service.proof.gpu_sections")
SECTIONS = (
    Section("device", 25, "versions, clocks, attention's backend", (*_MODULE, "device")),
    Section("profiler", 55, "kernels by id, by window and by queued replays", (*_MODULE, "profiler")),
    Section("ladder", 165, "parity and replay in bfloat16", (*_MODULE, "ladder", "bfloat16")),
    Section("float32", 85, "parity in float32", (*_MODULE, "ladder", "float32")),
    Section("tests", 150, "tests/gpu", (*_MODULE, "tests")),
)
"""In the order of what they decide; first results are on disk within a minute."""


def main(arguments: list[str]) -> int:
    """Check, write and print; the exit code: 0 good, 1 something failed or cannot be checked, 2 bad input."""
    parser = argparse.ArgumentParser(prog="gpu-check", description="Check the CUDA path on a GPU.")
    parser.add_argument("--only", help="sections, with commas; goals are then not judged")
    only = parser.parse_args(arguments).only
    names = [section.name for section in SECTIONS]
    chosen = only.split(",") if only else names
    if unknown := [name for name in chosen if name not in names]:
        print(f"gpu-check: no section '{unknown[0]}': try some of {', '.join(names)}", file=sys.stderr)
        return 2
    import torch

    if not torch.cuda.is_available():
        print("gpu-check: torch sees no CUDA device, so nothing can be checked here", file=sys.stderr)
        return 1
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, end)
    folder = Path(os.environ.get("OUT") or "results", f"gpu-check-{strftime('%Y%m%dT%H%M%SZ', gmtime())}")
    folder.mkdir(parents=True)
    cache = Path(os.environ.get("LAUNCHBOUND_CACHE_FOLDER") or ".cache/gpu-check")
    sections = [section for section in SECTIONS if section.name in chosen]
    return conclude(run_sections(sections, folder.resolve(), cache), folder, not only, Console(width=150))


def end(number: int, frame: object) -> None:
    """A handler of signals that raises SystemExit, so that the running section is ended on the way out."""
    raise SystemExit(128 + number)


# The sections


How = Literal["done", "failed", "killed", "timed out"]


class Ended(msgspec.Struct, frozen=True):
    """How a section ended: `rows` are on disk whatever happened."""

    name: str
    how: How
    detail: str
    seconds: float
    rows: int


def run_sections(sections: Sequence[Section], folder: Path, cache: Path) -> list[Ended]:
    """Run `sections` into `folder`, each whatever became of those before it.

    Each has its own limit, and what is left of MOST_SECONDS that no later one is to have.
    """
    until = monotonic() + MOST_SECONDS
    environment = _environment(cache)
    ended = []
    for number, section in enumerate(sections, 1):
        print(f"{section.name}: {section.about}", flush=True)
        limit = until - monotonic() - sum(later.seconds for later in sections[number:])
        one = run_section(section, folder, environment, max(limit, LEAST_SECONDS))
        ended.append(one)
        text = f"{section.name}: {one.how}, {one.rows} rows, {one.seconds:.0f} s {one.detail}"
        print(text.rstrip(), flush=True)
    return ended


def _environment(cache: Path) -> Mapping[str, str]:
    """This environment, with everything that is compiled or traced below `cache`."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        **os.environ,
        "LAUNCHBOUND_CACHE_FOLDER": str(cache.resolve()),
        "TORCHINDUCTOR_CACHE_DIR": str(cache.resolve() / "inductor"),
        "CUDA_CACHE_PATH": str(cache.resolve() / "cuda"),
        "PYTHONUNBUFFERED": "1",
    }


def run_section(
    section: Section,
    folder: Path,
    environment: Mapping[str, str],
    limit_seconds: float,
    grace_seconds: float = GRACE_SECONDS,
) -> Ended:
    """Run `section` for at most `limit_seconds`.

    Its rows go to NAME.jsonl in `folder`, its output to NAME.log. It has a session of its own, which is ended
    with it: compile workers too, and what else it started.
    """
    began = monotonic()
    rows_file, log_file = folder / f"{section.name}.jsonl", folder / f"{section.name}.log"
    with log_file.open("ab") as log:
        child = subprocess.Popen(
            owned([sys.executable, *section.command], signal.SIGKILL),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**environment, PATH_VARIABLE: str(rows_file.resolve())},
            start_new_session=True,
        )
        timed_out = False
        try:
            child.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end_session(child, grace_seconds)
    rows, seconds, code = len(read_records(rows_file)), monotonic() - began, child.returncode
    how: How = "failed"
    if timed_out or code is None:
        how, detail = "timed out", f"still running after {limit_seconds:.0f} s"
    elif code < 0:
        how, detail = "killed", f"by {signal.Signals(-code).name}"
    elif code:
        detail = f"exit code {code}"
    elif not rows:
        detail = "ended well, but wrote no row"
    else:
        return Ended(section.name, "done", "", seconds, rows)
    lines = [line.strip() for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
    last = f": {lines[-1][:160]}" if lines else ""
    return Ended(section.name, how, detail + last, seconds, rows)


def _end_session(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """End what is left of the child's session, itself included: it leads both session and group."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace_seconds)
    # Nobody is left where the child ended and took all with it.
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    # A process that hangs inside a driver cannot be killed, and the next section can still run.
    with suppress(subprocess.TimeoutExpired):
        child.wait(grace_seconds)


# What they found


def conclude(ended: Sequence[Ended], folder: Path, judged: bool, console: Console) -> int:
    """Print the tables and write the summary; the exit code.

    0 where every section ended well and, where goals are `judged`, every deciding one is met, else 1.
    """
    records = {one.name: read_records(folder / f"{one.name}.jsonl") for one in ended}
    goals = goals_of(records) if judged else []
    console.print(endings_table(ended))
    if judged:
        console.print(goals_table(goals))
    passed = all(one.how == "done" for one in ended) and all(goal.holds for goal in goals)
    found = {
        "format_version": FORMAT_VERSION,
        **git_state(),
        "passed": passed,
        "sections": ended,
        "goals": goals,
    }
    (folder / SUMMARY_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    console.print(f"results in {folder}", soft_wrap=True, markup=False)
    return 0 if passed else 1


def endings_table(ended: Sequence[Ended]) -> Table:
    """How each section ended, and why where it did not end well."""
    table = Table("section", "ended", "s", "rows", "why")
    for one in ended:
        how = f"[{'green' if one.how == 'done' else 'bold red'}]{one.how}[/]"
        table.add_row(one.name, how, f"{one.seconds:.0f}", str(one.rows), escape(one.detail))
    return table


def goals_table(goals: Sequence[Goal]) -> Table:
    """Every goal with what was found; those that only inform are marked."""
    table = Table("goal", "found", "wanted", "verdict")
    for goal in goals:
        word = goal.verdict if goal.decides else f"{goal.verdict} (informs)"
        table.add_row(escape(goal.name), escape(goal.note), goal.bound, f"[{STYLES[goal.verdict]}]{word}[/]")
    return table


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
