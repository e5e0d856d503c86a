"""Repeats starts of a service from an empty and from a filled cache, and shows where their seconds went."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any, Literal

import msgspec

from loadtests.report.formatting import listed, significant, span
from loadtests.report.page import Plot, Section, Table, Text, write_page
from loadtests.report.plots import base
from loadtests.run.folder import git_state
from loadtests.run.target import Target, await_modes
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
}
"""What the parts of a start are called, and their colours, in the order in which they are stacked."""

WHOLE = {
    "total_seconds": ("until it is ready", ""),
    "compiled": ("callables compiled", ""),
    "compiler_runs": ("runs of the C++ compiler, in all threads", ""),
    "beside_seconds": ("compiled beside it by a second process", ""),
}

STARTS_FILE, PAGE_FILE = "startup.json", "startup.html"

Starts = dict[Kind, list[dict[str, float]]]
"""By kind each start in order: its seconds by PHASES, which sum to `total_seconds`, and the rest of WHOLE."""


def run_starts(
    launch: Callable[[Path], AbstractContextManager[Target]],
    counts: dict[Kind, int],
    modes: list[str],
    cache: Path,
    folder: Path,
    report: Callable[[str], None],
) -> Starts:
    """Make `counts` starts of each kind in turn; after each of them the files in `folder` have it.

    `launch` starts a service with a cache folder, which is made in `cache` and removed again; a warm start
    gets that of the cold one before it. Raises what `launch` raises, and TargetError.
    """
    starts: Starts = {kind: [] for kind in counts}
    turns = [(n, kind) for n in range(max(counts.values())) for kind in counts if n < counts[kind]]
    with ExitStack() as caches:
        for number, kind in turns:
            if kind == "cold":
                caches.close()  # each has hundreds of megabytes
                filled = Path(caches.enter_context(TemporaryDirectory(prefix="startup-", dir=cache)))
            report(f"{kind} start {number + 1} of {counts[kind]}")
            launched_ns = perf_counter_ns()
            with launch(filled) as target:
                document = await_modes(target, modes, lambda _: None, settled=True)
            starts[kind].append(_parts(launched_ns, document))
            _write(starts, document["engine"], folder)
    return starts


def _parts(launched_ns: int, document: dict[str, Any]) -> dict[str, float]:
    start = document["engine"]["start"]
    return {
        "front": (start["began_ns"] - launched_ns) / 1e9,
        **start["seconds"],
        "total_seconds": (start["ready_ns"] - launched_ns) / 1e9,
        "compiled": sum(one["cold"] for mode in document["modes"] for one in mode["compilations"]),
        "compiler_runs": start["compiler_runs"],
        "beside_seconds": start["beside_seconds"],
    }


def means(starts: Starts) -> dict[Kind, dict[str, Interval]]:
    """By kind the means of PHASES and WHOLE, with Student's t interval over the starts."""
    made = {kind: of for kind, of in starts.items() if of}
    return {kind: {name: _mean(name, of) for name in (*PHASES, *WHOLE)} for kind, of in made.items()}


def _mean(name: str, starts: list[dict[str, float]]) -> Interval:
    one = mean_interval([start[name] for start in starts])
    return replace(one, low=max(0.0, one.low)) if one.samples > 1 else one


def table(starts: Starts) -> Table:
    """A row for each part, a column for each kind of start."""
    found = means(starts)
    rows = [
        [Text(name, colour=colour), *(_cell(of[key]) for of in found.values())]
        for key, (name, colour) in (PHASES | WHOLE).items()
    ]
    heads = ["", *(f"{kind}, mean of {len(starts[kind])}" for kind in found)]
    note = (
        "Seconds, except for the counts, with 95 % intervals (Student's t) from two starts on. The parts are "
        "those of the engine's main thread, each without what is nested in it, and sum to the time from the "
        "launch until it is ready. What a second process compiles beside it overlaps with them: only the "
        "engine's wait for it is a part."
    )
    return Table("Where the seconds of a start go", heads, rows, note)


def _cell(one: Interval) -> Text:
    return Text(significant(one.value), span=span(one) if one.samples > 1 else "")


def chart(starts: Starts) -> Plot:
    """A bar for each start, the first one on top."""
    bars = {f"{kind} {number}": one for kind, of in starts.items() for number, one in enumerate(of, 1)}
    figure = base("seconds", "", height=160 + 28 * len(bars))
    for phase, (name, colour) in PHASES.items():
        spent = [one[phase] for one in bars.values()]
        hover = f"{name}: %{{x:.3g}} s<extra>%{{y}}</extra>"
        more = {"name": name, "marker": {"color": colour}, "hovertemplate": hover}
        figure.add_bar(orientation="h", x=spent, y=list(bars), **more)
    figure.update_layout(barmode="stack", bargap=0.3, legend={"traceorder": "normal"})
    figure.update_yaxes(autorange="reversed", title=None)
    caption = "One bar is one start. Its parts sum to it; they are not in the order of time."
    return Plot("starts", "Each start", caption, figure)


def as_json(starts: Starts) -> dict[str, Any]:
    """By kind and part the mean with its interval."""
    found = means(starts).items()
    return {kind: {name: named_fields(one, "mean") for name, one in of.items()} for kind, of in found}


def _write(starts: Starts, engine: dict[str, Any], folder: Path) -> None:
    document = {"format_version": 1, "commit": git_state(), "engine": engine, "starts": starts}
    encoded = msgspec.json.encode({**document, "means": as_json(starts)})
    (folder / STARTS_FILE).write_bytes(msgspec.json.format(encoded) + b"\n")
    ready = [f"{significant(of['total_seconds'].value)} s ({kind})" for kind, of in means(starts).items()]
    served = f"{engine['model']}, {', '.join(engine['modes'])}, batch sizes {engine['batch_buckets']}"
    context = {
        "headline": f"Ready after {listed(ready)}",
        "about": f"{served}; torch {engine['torch']}, {engine['device_name']}, threads: {engine['threads']}",
        "sections": [Section("Cold and warm starts", tables=[table(starts)], plots=[chart(starts)])],
    }
    write_page(folder, PAGE_FILE, context)
