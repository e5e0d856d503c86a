"""Measures what the made parts of docs/anatomy.md and docs/probes.md show, and writes them from that."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import StringIO
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from rich.console import Console

from service.anatomy import studies
from service.anatomy.common import Report, StudyError, named, prepare_bench
from service.anatomy.studies import progress
from service.measure.cases import Bench
from service.records import EngineSettings
from service.statistics.intervals import Interval
from service.step.device import device_name
from service.study_names import PROBES

ROOT = Path(__file__).parents[2]
BEGIN = "<!-- From here to the end: made by `launchbound docs`; do not edit. -->"

COLUMNS = 118
LINES_SHOWN = 60
ABOUT = 1.5
"""A quoted `~x` is taken as x / ABOUT to x · ABOUT."""


class Measured(msgspec.Struct, frozen=True):
    """A value of `what` with its interval, without an upper end for None; equal ends: it was counted."""

    what: str
    value: float
    low: float
    high: float | None

    @classmethod
    def of(cls, what: str, interval: Interval) -> Measured:
        """From an interval of a study."""
        return cls(
            what, interval.value, interval.low, interval.high if math.isfinite(interval.high) else None
        )

    @classmethod
    def counted(cls, what: str, value: float) -> Measured:
        """An exact number."""
        return cls(what, value, value, value)


class Runs:
    """The studies that were run on `bench`, each once per arguments."""

    def __init__(self, bench: Bench, rounds: int, report: Report) -> None:
        self.bench = bench
        self.rounds = rounds
        self._report = report
        self._found: dict[tuple[str, bytes], Any] = {}

    def __call__(self, study: str, **arguments: object) -> Any:  # noqa: ANN401 - each has its own finding
        """The finding of `study`. Raises StudyError where it refuses."""
        key = study, msgspec.json.encode(arguments)
        if key not in self._found:
            self._found[key] = studies.run(self.bench, *key, named(study, self._report))
        return self._found[key]

    def layers(self) -> list[Any]:
        """The table of layers of each operator on [SMALL, SMALL]."""
        found: list[Any] = self("layers", sizes=[SMALL], rounds=self.rounds).operations
        return found

    def against(self, mode: str, other: str) -> list[Any]:
        """The points of `mode` and of `other`, whose rounds pair with it, at batch 1."""
        found: list[Any] = self("budget", modes=[mode, other], batch_sizes=[1], rounds=self.rounds).points
        return found

    def needs_gpu(self) -> None:
        """Raise StudyError on a CPU."""
        if self.bench.device.type == "cpu":
            raise StudyError("unsupported_here", "needs a GPU: this row waits for one")


SMALL = 8
"""Of the tensors in the table of layers, [SMALL, SMALL]: their kernels do next to nothing."""


def _layers(run: Runs, *names: str) -> Iterator[Measured]:
    """Layers of each operator. Raises StudyError, with the study's reason, for what cannot be isolated."""
    for one in run.layers():
        for layer in (layer for layer in one.layers if layer.name in names):
            if layer.microseconds is None:
                run.needs_gpu()
                raise StudyError("unsupported_here", str(layer.why_not))
            what = f"{one.operation}'s {layer.name}" if len(names) > 1 else one.operation
            yield Measured.of(what, layer.microseconds)


def _whole_call(run: Runs) -> Iterator[Measured]:
    """One call after another of each operator, and the mean call of an eager step."""
    for one in run.layers():
        yield Measured.of(one.operation, one.whole_microseconds)
    eager = run("operators", mode="eager")
    found, each = eager.dispatch, 1e6 / len(eager.operators)
    if found is not None and found.low is not None and found.high is not None:
        yield Measured("in a step", found.seconds * each, found.low * each, found.high * each)


def _over_kernels(run: Runs) -> Iterator[Measured]:
    """An eager step over its kernels; each end combines the worse ends of both."""
    point = run.against("eager", "compiled")[0]
    step, kernel = point.step, point.kernel_seconds
    if kernel.value > 0:
        high = step.high / kernel.low if kernel.low > 0 else None
        yield Measured("", step.value / kernel.value, step.low / kernel.high, high)


def _gain(run: Runs, mode: str, *bases: str) -> Iterator[Measured]:
    """By how many percent more steps per second `mode` makes than each of `bases`, paired by round."""
    for base in bases:
        found = run.against(base, mode)[1].speedup
        value, low, high = ((end - 1) * 100 for end in (found.value, found.low, found.high))
        yield Measured(f"against `{base}`" if len(bases) > 1 else "", value, low, high)


def _of_block(run: Runs, mode: str, count: Callable[[Any], float]) -> Iterator[Measured]:
    """`count` of a whole decode step, over the model's layers."""
    yield Measured.counted("", count(run("operators", mode=mode)) / run.bench.model.config.layers)


def _saved(run: Runs) -> Iterator[Measured]:
    """What only the tape keeps alive, over the parameters."""
    for size in sorted({min(run.bench.buffers), max(run.bench.buffers)}):
        found = run("memory", mode="eager", batch_size=size, phase="prefill")
        parameters = next(part.bytes for part in found.parts if part.name == "parameters")
        yield Measured.counted(f"at batch {size}", found.steps[0].tape.own_bytes / parameters)


def _registry(run: Runs, prefix: str) -> Iterator[Measured]:
    found = run("operators", mode="compiled", lowering=True).lowering.registry
    for name in ("overloads", "operators"):
        yield Measured.counted(name, getattr(found, prefix + name))


def _autocast_above(run: Runs) -> Iterator[Measured]:
    """By how many keys autocast's comes before autograd's, in a product with a weight that requires grad."""
    found = run("operator", expression="torch.matmul(x, weight)", size=SMALL, autocast=True)
    keys = list(dict.fromkeys(key.key for call in found.calls for key in call.keys or ()))
    autograd, autocast = ([key.startswith(kind) for key in keys].index(True) for kind in ("Autogr", "Autoc"))
    yield Measured.counted("", autograd - autocast)


def _autograd_keys(run: Runs, mode: str) -> Iterator[Measured]:
    """Percent of the step's calls that pass a key of autograd."""
    rows = run("operators", mode=mode).operators
    passing = sum(any(key.startswith("Autograd") for key in row.keys or ()) for row in rows)
    yield Measured.counted("", 100 * passing / len(rows))


def _launches(run: Runs) -> Iterator[Measured]:
    run.needs_gpu()
    found = run("operators", mode="eager").launches
    if found is not None:
        yield Measured.counted("", found)


def _added_by(run: Runs, probe: str) -> Iterator[Measured]:
    """Microseconds that a probe's fault adds on a GPU; each end combines the worse ends of both sides."""
    run.needs_gpu()
    found = run("probes", name=probe, repeats=run.rounds)
    base, fault = found.without, found.with_fault
    if None not in (base.low, base.high, fault.low, fault.high):
        value = fault.median_seconds - base.median_seconds
        yield Measured("", value * 1e6, (fault.low - base.high) * 1e6, (fault.high - base.low) * 1e6)


class Claim(NamedTuple):
    """What texts quote, in words and as a range of `unit`; what measures it, and how its values are read."""

    about: str
    quoted: str
    range: tuple[float, float]
    unit: str
    by: str
    read: Callable[..., Iterator[Measured]]
    arguments: tuple[Any, ...] = ()


def about(value: float) -> tuple[float, float]:
    """The range of a quoted `~value`."""
    return value / ABOUT, value * ABOUT


_MORE = math.inf
_STUDY = "`launchbound anatomy`"
_LAYERS = "`launchbound anatomy --layers`"
_BUDGET = "`launchbound anatomy --budget`"
_LOWERING = "`launchbound anatomy --lowering`"
_MATMUL = '`launchbound anatomy --op "torch.matmul(x, weight)" --set autocast=true`'

CLAIMS: tuple[Claim, ...] = (
    Claim("Python per operator", "1–10 µs", (1, 10), " µs", f"{_LAYERS}, *python*", _layers, ("python",)),
    Claim("binding", "~1 µs", about(1), " µs", f"{_LAYERS}, *binding*", _layers, ("binding",)),
    Claim("a pass of the dispatcher", "1–5 µs", (1, 5), " µs", _LAYERS, _layers, ("dispatcher",)),
    Claim("a whole call", "5–25 µs", (5, 25), " µs", f"{_LAYERS}; {_STUDY}, dispatch / calls", _whole_call),
    Claim("autograd", "1–3 µs", (1, 3), " µs", f"{_LAYERS}, *autograd*", _layers, ("autograd",)),
    Claim("ATen", "1–2 µs", (1, 2), " µs", f"{_LAYERS}, *operator*", _layers, ("operator",)),
    Claim("backend", "1–5 µs", (1, 5), " µs", _LAYERS, _layers, ("allocator", "kernel")),
    Claim("eager at batch 1 against its kernels", "~5× slower", about(5), " ×", _BUDGET, _over_kernels),
    Claim("`inference_mode` against `no_grad`", "5–15 % faster", (5, 15), " %", _BUDGET, _gain,
          ("inference_mode", "no_grad")),
    Claim("compiling", "30–100 % faster", (30, 100), " %", _BUDGET, _gain,
          ("compiled", "eager", "inference_mode")),
    Claim("a block, eager", "~12 kernels", about(12), "", f"{_STUDY} of eager, no views", _of_block,
          ("eager", lambda step: sum(row.is_view is not True for row in step.operators))),
    Claim("a block, compiled", "2–4 kernels", (2, 4), "", f"{_STUDY} of compiled", _of_block,
          ("compiled", lambda step: sum(kernel.calls for kernel in step.fused_kernels))),
    Claim("operators of a block", "~50 small ones", about(50), "", f"{_STUDY} of eager", _of_block,
          ("eager", lambda step: len(step.operators))),
    Claim("saved tensors against parameters", "4–8×", (4, 8), " ×", "`launchbound anatomy --memory`", _saved),
    Claim("overloads in the registry", "~2,000", about(2000), "", _LOWERING, _registry, ("",)),
    Claim("core operators", "~250", about(250), "", _LOWERING, _registry, ("core_",)),
    Claim("autocast's key (texts disagree)", "above autograd's", (1, _MORE), " above", _MATMUL,
          _autocast_above),
    Claim("autograd's keys in `inference_mode`", "removed", (0, 0), " % of calls", _STUDY, _autograd_keys,
          ("inference_mode",)),
    Claim("autograd's keys in `no_grad` (texts disagree)", "removed", (0, 0), " % of calls", _STUDY,
          _autograd_keys, ("no_grad",)),
    Claim("a launch", "1–3 µs", (1, 3), " µs", f"{_LAYERS}, *launch*", _layers, ("launch",)),
    Claim("`cudaMalloc`", "100+ µs", (100, _MORE), " µs", "`launchbound probe fragmentation`", _added_by,
          ("fragmentation",)),
    Claim("launches of a step", "80–200", (80, 200), "", f"{_STUDY} of eager", _launches),
    Claim("a sync in the step", "costs a wait", (0, _MORE), " µs", "`launchbound probe sync-point`",
          _added_by, ("sync-point",)),
)  # fmt: skip
"""In the order of the page: Python and its layers, modes, counts, and what only a GPU can show."""


class Example(NamedTuple):
    """A study as the page prints it: options, body over HTTP, and the first line of what is shown of it."""

    options: str
    study: str
    arguments: dict[str, Any]
    begins: str = ""


EXAMPLES: tuple[Example, ...] = (
    Example("--mode inference_mode", "operators", {"mode": "inference_mode"}),
    Example("--mode compiled --lowering", "operators", {"mode": "compiled", "lowering": True},
            "Dynamo's graph"),
    Example('--op "torch.add(a, b)"', "operator", {"expression": "torch.add(a, b)"}),
    Example("--layers --set 'sizes=[8, 256]'", "layers", {"sizes": [SMALL, 256]}),
    Example("--tape --expression linear-relu-sum", "tape", {"expression": "linear-relu-sum"}),
    Example("--timeline --against compiled", "timeline", {"against": "compiled"}),
    Example("--budget --set 'modes=[\"eager\"]'", "budget", {"modes": ["eager"]}),
    Example("--memory", "memory", {}),
    Example("--rms-norm", "rms-norm", {}),
)  # fmt: skip


def lesson(run: Runs, claim: Claim) -> list[Measured] | str:
    """The values of `claim`, or why they cannot be measured here."""
    try:
        return list(claim.read(run, *claim.arguments)) or "nothing of it was measured"
    except StudyError as refusal:
        return refusal.message


def printed(run: Runs, study: str, arguments: dict[str, Any], begins: str = "") -> str:
    """What a terminal shows, a refusal included: the first lines from the one that begins with `begins`."""
    text = StringIO()
    try:
        studies.find(study).show(run(study, **arguments), Console(file=text, width=COLUMNS))
    except StudyError as refusal:
        return f"launchbound: {refusal.message}"
    lines = [line.rstrip() for line in text.getvalue().strip().splitlines()]
    lines = list(dropwhile(lambda line: not line.startswith(begins), lines))
    if not lines:
        raise ValueError(f"{study}: no line that begins with '{begins}' was printed")
    further = len(lines) - LINES_SHOWN
    return "\n".join([*lines[:LINES_SHOWN], *([f"… {further} more lines"] if further > 0 else [])])


def anatomy_part(run: Runs) -> Iterator[str]:
    """The claims, then what each study prints."""
    rows = (_row(claim, lesson(run, claim)) for claim in CLAIMS)
    yield "\n".join(
        ["| claim | quoted | measured here | verdict | measured by |\n|---|---|---|---|---|", *rows]
    )
    yield "## Real output of every study"
    for one in EXAMPLES:
        body = f"`POST /v1/studies/{one.study}` with `{json.dumps(one.arguments)}`"
        output = printed(run, one.study, one.arguments, one.begins)
        yield f"### `launchbound anatomy {one.options}`\n\nOr {body}:\n\n```text\n{output}\n```"


def probes_part(run: Runs) -> Iterator[str]:
    """What each probe prints."""
    for name, teaches in PROBES.items():
        output = printed(run, "probes", {"name": name, "repeats": run.rounds})
        yield f"## {name}\n\n{teaches[:1].upper()}{teaches[1:]}.\n\n```\n{output}\n```"


def _row(claim: Claim, found: list[Measured] | str) -> str:
    if isinstance(found, str):
        return f"| {claim.about} | {claim.quoted} | – | cannot be measured here: {found} | {claim.by} |"
    values = "; ".join(f"{shown(value)}{claim.unit}" for value in found)
    verdict = f"**{verdict_of(found, *claim.range)}**"
    return f"| {claim.about} | {claim.quoted} | {values} | {verdict} | {claim.by} |"


def verdict_of(values: Sequence[Measured], low: float, high: float) -> str:
    """Agrees: every interval lies in [low, high]. Disagrees: each lies outside.

    In part: some do the one and some the other. Undecided: for lack of that, one reaches across an end.
    """
    single: set[str] = set()
    for value in values:
        most = math.inf if value.high is None else value.high
        inside, outside = low <= value.low and most <= high, most < low or high < value.low
        single.add("agrees" if inside else "disagrees" if outside else "undecided")
    if len(single) == 1:
        return single.pop()
    return "agrees in part" if {"agrees", "disagrees"} <= single else "undecided"


def shown(value: Measured) -> str:
    """`value` with its interval; what was counted without."""
    what = f"{value.what} {_number(value.value)}".lstrip()
    if value.low == value.high:
        return what
    return f"{what} ({_number(value.low)} to {'more' if value.high is None else _number(value.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


PAGES = {"anatomy": anatomy_part, "probes": probes_part}


def source(bench: Bench, rounds: int, commit: str) -> str:
    """When, on what machine and of which code a page is measured, with the model's name and no folder."""
    model = bench.settings.model.rstrip("/").rpartition("/")[2]
    return (
        f"Measured on {datetime.now(UTC).date()}: {device_name(bench.device)}, {os.cpu_count() or 1} cores, "
        f"torch {torch.__version__}; model {model}, {bench.precision.name}, {torch.get_num_threads()} "
        f"thread(s), device {bench.device.type}. {rounds} rounds; commit {commit}."
    )


def write_page(page: str, parts: Iterable[str]) -> None:
    """Write `parts` behind what stands before BEGIN in `page`."""
    file = ROOT / "docs" / f"{page}.md"
    by_hand = file.read_text(encoding="utf-8").partition(BEGIN)[0].rstrip()
    file.write_text("\n\n".join([by_hand, BEGIN, *parts]) + "\n", encoding="utf-8")
    print(file)


def main(settings: EngineSettings, pages: Sequence[str], rounds: int, commit: str) -> None:
    """Measure what `pages` show and write them. Raises StudyError for bad settings, ValueError for a study
    that printed nothing of what a page shows.
    """
    with progress(Console(stderr=True)) as report:
        report("loading the model")
        bench = prepare_bench(settings)
        for page in pages:
            parts = PAGES[page](Runs(bench, rounds, report))
            write_page(page, [source(bench, rounds, commit), *parts])
