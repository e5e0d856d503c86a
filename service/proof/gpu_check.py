"""`make gpu-check`: `python -m service.proof.gpu_check [--part 1|2|3|4|5] [--only SECTION,…]`.

Sections of the CUDA path, each a process of its own with a time limit: what it wrote is kept, whatever
becomes of it. The process that runs them makes no CUDA context. Results go to `$OUT`, else to `results/`;
compiled code and traces to `$LAUNCHBOUND_CACHE_FOLDER`, else to `.cache/gpu-check`, for the next check.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import gmtime, monotonic, strftime
from types import FrameType
from typing import Any, Literal, NamedTuple

if __name__ == "__main__":  # before the imports below, which need these packages as the sections do
    for name in ("torch", "msgspec", "rich", "numpy", "scipy", "psutil", "safetensors", "tokenizers"):
        if find_spec(name) is None:
            sys.exit(f"gpu-check: {sys.executable} lacks {name}: install it or give another one as PYTHON=")

import msgspec
from rich.console import Console

from loadtests.run.folder import git_state
from loadtests.run.machine import clocks_query, clocks_summary, watched
from service.anatomy.show import records_table
from service.modes import default_modes
from service.parent_death import owned
from service.proof import gpu_goals
from service.proof.gpu_goals import MOST_SECONDS, Goal, read_records

ROOT = Path(__file__).resolve().parents[2]
FORMAT_VERSION = 4
LEAST_SECONDS = 5.0
"""A section that had less time than this is not begun."""

POLL_SECONDS = 0.05
GRACE_SECONDS = 10.0
"""After SIGTERM, for a section to end what it has started."""

DETAIL_CHARACTERS = 160


class Section(NamedTuple):
    """`command` are arguments of the interpreter; `seconds` is its limit, beside what earlier ones have left.
    Without `records` its output, NAME.out, is its result; not `timed`, it may run beside others like it.
    """

    name: str
    seconds: float
    about: str
    command: tuple[str, ...]
    records: bool = True
    timed: bool = True


def _own(name: str, seconds: float, about: str, arguments: str = "", timed: bool = True) -> Section:
    command = "-m", "service.proof.gpu_sections", *(arguments or name).split()
    return Section(name, seconds, about, command, timed=timed)


def _verb(name: str, seconds: float, about: str, arguments: str, *others: str) -> Section:
    command = "launchbound.py", *arguments.split(), *others, "--device", "cuda"
    return Section(name, seconds, about, command, records=False)


def parts(folder: str) -> dict[int, tuple[Section, ...]]:
    """The sections of every part, by its number, in the order of what they decide; part 3 writes to `folder`.
    Part 1 has all that decides whether the CUDA path works; first results are on disk within a minute.
    """
    timeline = "anatomy --timeline --mode eager --against reduce-overhead --json"
    selftest = "selftest --only cuda,instrumentation --out"
    # Packages are tuned for minutes on a GPU.
    sweep = f"sweep --preset quick --modes {','.join(default_modes())} --out"
    return {
        1: (
            _own("device", 25, "versions, clocks, copy bandwidth"),
            _own("profiler", 55, "kernels by id, by window and by queued replays"),
            _own("ladder", 165, "default modes and cuda-graph, bfloat16", "ladder bfloat16"),
            _own("float32", 85, "parity in float32", "ladder float32", timed=False),
            _own("tests", 235, "tests/gpu", timed=False),
        ),
        2: (
            _own("small", 130, "a served token of small, batch 1", "sizes small 1"),
            _own("base", 130, "a served token of base, batch 1", "sizes base 1"),
            _own("batches", 190, "a served token of small, batch 8 and 64", "sizes small 8,64"),
            _own("attention", 30, "kernels of a decode step's attention"),
        ),
        3: (
            _verb("selftest", 130, "the selftest's rows for CUDA", selftest, f"{folder}/selftest"),
            _verb("sweep", 350, "the quick sweep", sweep, f"{folder}/sweep"),
        ),
        4: (_own("tuned", MOST_SECONDS, "parity of max-autotune and aot-inductor"),),
        5: (
            _verb("timeline", 60, "eager's step over reduce-overhead's", timeline),
            _verb("layers", 60, "what each layer of PyTorch takes", "anatomy --layers --json"),
            _verb("budget", 90, "dispatch and kernels by batch", "anatomy --budget --json"),
            _verb("kernels", 60, "kernels of a step", "anatomy --mode reduce-overhead --json"),
        ),
    }


def main(arguments: list[str]) -> int:
    """Check, write and print; the exit code: 0 good, 1 something failed or cannot be checked, 2 bad input."""
    parser = argparse.ArgumentParser(prog="gpu-check", description="Check the CUDA path on a GPU.")
    about = "2: larger models; 3: selftest, sweep; 4: modes that tune; 5: studies"
    parser.add_argument("--part", type=int, choices=range(1, 6), default=1, help=about)
    parser.add_argument("--only", help="sections, comma-separated; the goals of part 1 are then not judged")
    about = "of all sections together; those that find no time are not begun"
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help=about)
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        print("gpu-check: torch sees no CUDA device, so nothing can be checked here", file=sys.stderr)
        return 1
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, end)
    name = f"gpu-check-part-{options.part}-{strftime('%Y%m%dT%H%M%SZ', gmtime())}"
    folder = Path(os.environ.get("OUT") or "results", name).resolve()
    sections = {section.name: section for section in parts(str(folder))[options.part]}
    chosen = options.only.split(",") if options.only else list(sections)
    unknown = [name for name in chosen if name not in sections]
    if unknown:
        print(f"gpu-check: no section '{unknown[0]}': try some of {', '.join(sections)}", file=sys.stderr)
        return 2
    folder.mkdir(parents=True)
    cache = Path(os.environ.get("LAUNCHBOUND_CACHE_FOLDER") or ".cache/gpu-check")
    checked = run_sections(
        [one for name, one in sections.items() if name in chosen], folder, cache, options.seconds
    )
    judged = None if options.part == 1 and options.only else options.part
    return conclude(checked, folder, judged, Console(width=150))


def end(number: int, frame: FrameType | None) -> None:
    """A handler of signals that raises SystemExit, so that the running section is ended on the way out."""
    raise SystemExit(128 + number)


class Ended(msgspec.Struct, frozen=True):
    """How a section ended: `rows` are on disk whatever happened."""

    name: str
    how: Literal["done", "failed", "killed", "timed out", "not begun"]
    detail: str
    seconds: float
    rows: int


class Checked(NamedTuple):
    """`started` is in Unix seconds; `cold`: there was no compiled code yet; `unwatched`: why no clocks."""

    started: float
    seconds: float
    cold: bool
    ended: list[Ended]
    unwatched: str | None


def run_sections(
    sections: Sequence[Section], folder: Path, cache: Path, total_seconds: float = MOST_SECONDS
) -> Checked:
    """Run `sections` into `folder` within `total_seconds`, each whatever became of those before it."""
    started, until = time.time(), monotonic() + total_seconds
    cold = not cache.exists() or not any(cache.iterdir())
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = cache.resolve()
    compiled = {"TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"), "CUDA_CACHE_PATH": str(own / "cuda")}
    environment = {**os.environ, **compiled, "LAUNCHBOUND_CACHE_FOLDER": str(own), "PYTHONUNBUFFERED": "1"}
    command, unwatched = clocks_query()
    ended = []
    for group in groups(sections):
        left = until - monotonic()
        if left < LEAST_SECONDS:
            why = f"the {total_seconds:.0f} s of all sections were over"
            ended += [Ended(one.name, "not begun", why, 0.0, 0) for one in group]
            continue
        print(*(f"{section.name}: {section.about}" for section in group), sep="\n", flush=True)
        later = sections[sections.index(group[-1]) + 1 :]
        with watched(command, folder / f"{group[0].name}.clocks.csv"):
            found = run_group(group, folder, environment, limits_seconds(group, later, left))
        ended += found
        for one in found:
            text = f"{one.name}: {one.how}, {one.rows} rows, {one.seconds:.0f} s {one.detail}"
            print(text.rstrip(), flush=True)
    return Checked(started, time.time() - started, cold, ended, unwatched)


def groups(sections: Sequence[Section]) -> list[list[Section]]:
    """What runs at a time: a section that is timed alone, those in a row that are not together."""
    found: list[list[Section]] = []
    for section in sections:
        if not found or section.timed or found[-1][-1].timed:
            found.append([])
        found[-1].append(section)
    return found


def limits_seconds(group: Sequence[Section], later: Sequence[Section], left_seconds: float) -> list[float]:
    """How long each of `group` may run: its limit, and what is left that no later one is to have."""
    spare = left_seconds - sum(max(one.seconds for one in other) for other in groups(later))
    return [min(left_seconds, max(section.seconds, spare)) for section in group]


def run_group(
    group: Sequence[Section],
    folder: Path,
    environment: Mapping[str, str],
    limits: Sequence[float],
    grace_seconds: float = GRACE_SECONDS,
) -> list[Ended]:
    """Run the sections of `group` beside each other, each for at most its limit in seconds."""
    running: list[_Running] = []
    ended: dict[str, Ended] = {}
    try:
        running += (_start(section, folder, environment) for section in group)
        while len(ended) < len(running):
            for one, limit in zip(running, limits, strict=True):
                over = one.child.poll() is not None or monotonic() - one.began >= limit
                if over and one.section.name not in ended:
                    ended[one.section.name] = _finish(one, grace_seconds)
            time.sleep(POLL_SECONDS)
    finally:
        for one in running:
            _end_session(one.child, grace_seconds)
    return [ended[section.name] for section in group]


class _Running(NamedTuple):
    section: Section
    child: subprocess.Popen[bytes]
    files: Mapping[str, Path]
    began: float


def _start(section: Section, folder: Path, environment: Mapping[str, str]) -> _Running:
    """Its rows go to NAME.jsonl in `folder`, its output to NAME.out and NAME.log. It has a session of its
    own, which is ended with it: compile workers too, and a service that it started.
    """
    began = monotonic()
    files = {end: folder / f"{section.name}.{end}" for end in ("jsonl", "out", "log")}
    with files["out"].open("ab") as out, files["log"].open("ab") as log:
        child = subprocess.Popen(
            owned([sys.executable, *section.command], signal.SIGKILL),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            cwd=ROOT,
            env={**environment, gpu_goals.PATH_VARIABLE: str(files["jsonl"].resolve())},
            start_new_session=True,
        )
    return _Running(section, child, files, began)


def _finish(running: _Running, grace_seconds: float) -> Ended:
    """End what is left of a section, and say how it ended."""
    section, child, files, began = running
    seconds, timed_out = monotonic() - began, child.poll() is None
    _end_session(child, grace_seconds)
    rows, code = len(read_records(files["jsonl"])), child.returncode
    how: Literal["failed", "killed", "timed out"] = "failed"
    if timed_out or code is None:
        lives = "; it could not be killed" if code is None else ""
        how, detail = "timed out", f"still running after {seconds:.0f} s{lives}"
    elif code < 0:
        how, detail = "killed", f"by {signal.Signals(-code).name}"
    elif code:
        detail = f"exit code {code}"
    elif section.records and not rows:
        detail = "ended well, but wrote no row"
    else:
        return Ended(section.name, "done", "", seconds, rows)
    lines = [line.strip() for line in files["log"].read_text(errors="replace").splitlines() if line.strip()]
    last = f": {lines[-1][:DETAIL_CHARACTERS]}" if lines else ""
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


def conclude(checked: Checked, folder: Path, part: int | None, console: Console) -> int:
    """Print the tables, write the summary; the exit code: 0 where every section ended well and every deciding
    goal of `part` is met, else 1. None: none is judged.
    """
    records = {one.name: read_records(folder / f"{one.name}.jsonl") for one in checked.ended}
    cells = gpu_goals.cells_of(records.get("ladder", []))
    sizes = [size for found in records.values() for size in gpu_goals.sizes_of(found)]
    goals: list[Goal] = []
    if part == 1:
        with_cells = {**records, "ladder": [*records.get("ladder", []), *cells]}
        goals = gpu_goals.goals_of(with_cells, checked.started)
    elif part == 2 and records.keys() & {"small", "base"}:
        goals = gpu_goals.size_goals(sizes)
    tables = {"cells": cells, "sizes": sizes, "sections": checked.ended, "goals": goals}
    for title, rows in tables.items():
        if rows:
            console.print(records_table(title, msgspec.to_builtins(rows)))
    if checked.unwatched:
        console.print(f"clocks, power and throttling are unknown: {checked.unwatched}", markup=False)
    passed = all(one.how == "done" for one in checked.ended) and all(goal.holds for goal in goals)
    found: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "started": checked.started,
        "seconds": checked.seconds,
        "compile_cache": "cold" if checked.cold else "warm",
        **git_state(),
        "passed": passed,
        **tables,
        "clocks": {one.name: clocks_summary(folder / f"{one.name}.clocks.csv") for one in checked.ended},
        "no_clocks": checked.unwatched,
    }
    (folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    console.print(f"results in {folder}", soft_wrap=True, markup=False)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
