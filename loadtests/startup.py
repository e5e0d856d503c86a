"""Repeats starts of a service from an empty and from a filled cache, and shows where their seconds went."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any, Literal, get_args

import msgspec
from rich.console import Console

from loadtests.report.formatting import in_seconds, listed, span
from loadtests.report.page import Plot, Section, Table, Text, print_table, write_page
from loadtests.report.plots import base
from loadtests.run.folder import git_state, now
from loadtests.run.run_file import STARTUP_FILE, DocumentFile
from loadtests.run.target import Target, await_modes
from service.start_records import StartTimes
from service.statistics.intervals import Interval, mean_interval, named_fields

Kind = Literal["cold", "warm"]

PHASES = {
    "front": ("the front: its process, imports and socket", "#B0B7C3"),
    "import": ("import of torch and of its compiler", "#4C72B0"),
    "weights": ("the model: weights, their layout, buffers", "#64B5CD"),
    "dynamo": ("Dynamo, and torch.export of packages", "#DD8452"),
    "aot_autograd": ("AOTAutograd", "#E9C46A"),
    "inductor": ("Inductor", "#55A868"),
    "compiler": ("C++ compiler or Triton", "#C44E52"),
    "second_compiler": ("waiting for the second compiler", "#DA8BC3"),
    "calls": ("first calls of what is compiled", "#8172B3"),
    "parity": ("parity beside eager", "#937860"),
    "measuring": ("first measurements of machine and steps", "#8C8C8C"),
    "rest": ("the remainder", "#D9CBA3"),
}  # fmt: skip
"""What the parts of a start are called, and their colours, in the order in which they are stacked."""

PAGE_FILE = "startup.html"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start: `seconds` by phase of the main threads, which sum to `total_seconds` from launch to ready.

    `compiled`: callables that were not in the cache. The rest is as in StartTimes.
    """

    kind: Kind
    number: int
    seconds: dict[str, float]
    total_seconds: float
    compiled: int
    compiler_runs: int
    beside_seconds: float


class Startup(msgspec.Struct, kw_only=True):
    """startup.json: starts of one service, in the order in which they were made."""

    format_version: int = 1
    began: str
    commit: dict[str, Any]
    engine: dict[str, Any] = {}
    starts: list[Start] = []

    def of(self, kind: Kind) -> list[Start]:
        return [one for one in self.starts if one.kind == kind]

    def kinds(self) -> list[Kind]:
        return [kind for kind in get_args(Kind) if self.of(kind)]


STARTUP = DocumentFile(
    STARTUP_FILE, Startup, 1, "folder of starts", "launchbound startup", "measure the starts again"
)

Launch = Callable[[Path], AbstractContextManager[Target]]
"""Starts a service with a cache folder; it ends with the context."""


def run_starts(
    launch: Launch,
    counts: dict[Kind, int],
    modes: list[str],
    cache: Path,
    folder: Path,
    report: Callable[[str], None],
) -> None:
    """Make `counts` starts of each kind; after each of them `startup.json` in `folder` has it.

    Their own caches are made in `cache`, and removed. Raises what `launch` raises, and TargetError.
    """
    startup = Startup(began=now(), commit=git_state())
    with TemporaryDirectory(prefix="startup-", dir=cache) as caches:
        filled = Path(caches)
        for kind, number in _in_turn(counts):
            if kind == "cold":
                filled = _emptied(Path(caches), number)
            doing = f"{kind} start {number} of {counts[kind]}" if number else "a start that fills the cache"
            launched_ns = perf_counter_ns()
            with launch(filled) as target:
                document = await_modes(target, modes, partial(_told, report, doing), settled=True)
            if number:
                startup.starts.append(_start(kind, number, launched_ns, document))
                startup.engine = {**document["engine"], "start": None}
                STARTUP.write(folder, startup)


def _told(report: Callable[[str], None], doing: str, text: str) -> None:
    report(f"{doing}: {text}")


def _in_turn(counts: dict[Kind, int]) -> Iterator[tuple[Kind, int]]:
    """Each start's kind and number: a cold one, then a warm one with what that has compiled, and so on.

    Where no cold start is wanted, number 0 fills the cache for the warm ones, and is not counted.
    """
    if not counts["cold"]:
        yield "cold", 0
    for number in range(1, max(counts.values()) + 1):
        yield from ((kind, number) for kind in get_args(Kind) if number <= counts[kind])


def _emptied(caches: Path, number: int) -> Path:
    """A new cache folder in `caches`, which then holds no other: one has hundreds of megabytes."""
    for before in caches.iterdir():
        shutil.rmtree(before)
    folder = caches / str(number)
    folder.mkdir(mode=0o700)
    return folder


def _start(kind: Kind, number: int, launched_ns: int, document: dict[str, Any]) -> Start:
    times = msgspec.convert(document["engine"]["start"], StartTimes)
    compilations = [one for mode in document["modes"] for one in mode["compilations"]]
    return Start(
        kind=kind,
        number=number,
        seconds={"front": (times.began_ns - launched_ns) / 1e9, **times.seconds},
        total_seconds=(times.ready_ns - launched_ns) / 1e9,
        compiled=sum(one["cold"] for one in compilations),
        compiler_runs=times.compiler_runs,
        beside_seconds=times.beside_seconds,
    )


def intervals(startup: Startup, kind: Kind) -> dict[str, Interval]:
    """Mean seconds by phase, and of the whole as `total`, with Student's t interval over the starts."""
    starts = startup.of(kind)
    found = {phase: _interval([one.seconds[phase] for one in starts]) for phase in PHASES}
    return {**found, "total": _interval([one.total_seconds for one in starts])}


def _interval(seconds: list[float]) -> Interval:
    found = mean_interval(seconds)
    return replace(found, low=max(0.0, found.low)) if len(seconds) > 1 else found


def result(startup: Startup) -> dict[str, Any]:
    """For `--json`: by kind and phase the seconds with their interval."""
    return {
        kind: {phase: named_fields(one, "seconds") for phase, one in intervals(startup, kind).items()}
        for kind in startup.kinds()
    }


def table(startup: Startup) -> Table:
    """A row for each phase, a column for each kind of start."""
    kinds = startup.kinds()
    found = [intervals(startup, kind) for kind in kinds]
    names = {**{phase: name for phase, (name, _) in PHASES.items()}, "total": "until it is ready"}
    colours = {phase: colour for phase, (_, colour) in PHASES.items()}
    rows = [
        [Text(name, colour=colours.get(phase, "")), *(_cell(one[phase]) for one in found)]
        for phase, name in names.items()
    ]
    counted = {
        "callables compiled": lambda one: one.compiled,
        "runs of the C++ compiler, in all threads": lambda one: one.compiler_runs,
        "compiled beside it by a second process, s": lambda one: f"{one.beside_seconds:.3g}",
    }
    for name, count in counted.items():
        rows.append([Text(name), *(Text(_values(map(count, startup.of(kind)))) for kind in kinds)])
    heads = ["part of a start", *(f"{kind}, of {len(startup.of(kind))}" for kind in kinds)]
    note = (
        "Means, with 95 % intervals (Student's t) from two starts on. The parts are those of the engine's "
        "main thread, each without what is nested in it, and sum to the time from the launch until it is "
        "ready. What a second process compiles beside it overlaps with them: only the engine's wait for it "
        "is a part."
    )
    return Table("Where the seconds of a start go", heads, rows, note)


def _cell(one: Interval) -> Text:
    return Text(in_seconds(one.value), span=span(one) if one.samples > 1 else "")


def _values(values: Iterator[object]) -> str:
    """The value of all starts, or the different ones."""
    return ", ".join(dict.fromkeys(map(str, values)))


def chart(startup: Startup) -> Plot:
    """A bar for each start, the first one on top."""
    figure = base("seconds", "", height=160 + 28 * len(startup.starts))
    names = [f"{one.kind} {one.number}" for kind in startup.kinds() for one in startup.of(kind)]
    for phase, (name, colour) in PHASES.items():
        spent = [one.seconds[phase] for kind in startup.kinds() for one in startup.of(kind)]
        hover = f"{name}: %{{x:.3g}} s<extra>%{{y}}</extra>"
        bar = {"x": spent, "y": names, "name": name, "marker": {"color": colour}, "hovertemplate": hover}
        figure.add_bar(orientation="h", **bar)
    figure.update_layout(barmode="stack", bargap=0.3, legend={"traceorder": "normal"})
    figure.update_yaxes(autorange="reversed", title=None)
    caption = "One bar is one start. Its parts sum to it; they are not in the order of time."
    return Plot("starts", "Each start", caption, figure)


def show_startup(folder: Path, console: Console) -> dict[str, Any]:
    """Write the page of the starts in `folder`, and print its table; returns what `--json` prints.

    Raises RunError where there are none that can be read.
    """
    startup = STARTUP.read(folder)
    engine = startup.engine
    sizes = ", ".join(map(str, engine["batch_buckets"]))
    served = f"{engine['model']}, modes {', '.join(engine['modes'])}, batch sizes {sizes}"
    means = [f"{in_seconds(intervals(startup, kind)['total'].value)} ({kind})" for kind in startup.kinds()]
    context = {
        "headline": f"Ready after {listed(means)}",
        "about": f"{served}; torch {engine['torch']}, {engine['device_name']}, threads: {engine['threads']}",
        "sections": [Section("Cold and warm starts", tables=[table(startup)], plots=[chart(startup)])],
    }
    write_page(folder, PAGE_FILE, context)
    print_table(table(startup), console)
    console.print(f"page: {folder / PAGE_FILE}", soft_wrap=True)
    return {"path": str(folder), **result(startup)}
