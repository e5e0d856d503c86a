"""`peers.json`, everything that a comparison with rivals measured, and what its rows say: `peers.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import msgspec

from loadtests.run.run_file import DocumentFile
from service.statistics.choice import Rounds, by_speed, paired
from service.statistics.intervals import Interval, median_interval, paired_ratio

PEERS_FILE = "peers.json"
MARKDOWN_FILE = "peers.md"
FORMAT_VERSION = 1


class PeersError(RuntimeError):
    """A comparison that cannot be made; the message names the remedy."""


MOST_MORE_BITS = 0.01
"""Of float32's bits per byte, what another precision may need more to be compared: a convention."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """How well a contestant predicts a text of `text_bytes`, and how well float32 does: bits per byte, the
    cross-entropy of each token by those before it. It is no parity: tokens may differ.
    """

    bits_per_byte: float
    float32_bits_per_byte: float
    text_bytes: int

    @property
    def more(self) -> float:
        """The bits that it needs over float32's, as a fraction of these."""
        return self.bits_per_byte / self.float32_bits_per_byte - 1

    @property
    def passes(self) -> bool:
        return self.more <= MOST_MORE_BITS


class Contestant(msgspec.Struct, kw_only=True):
    """A mode of the service, or a runtime.

    `outside_pytorch`: one would leave PyTorch for it. `effective` is what a mode ran as. `quality` is that of
    another precision, which stands for equal tokens. `unavailable` says why it took no part, or from when
    on; None: it took part to the end.
    """

    name: str
    kind: Literal["mode", "runtime"]
    outside_pytorch: bool = False
    effective: str | None = None
    versions: dict[str, str] = {}
    settings: dict[str, Any] = {}
    quality: Quality | None = None
    unavailable: str | None = None

    def refused(self, difference: str | None) -> str | None:
        """Why it is not compared, where its tokens have that `difference`; None: it is."""
        if self.quality is None:
            return None if difference is None else f"other tokens: {difference}"
        return None if self.quality.passes else f"worse text: {_quality(self.quality)}"


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """The timed calls of one contestant at one batch size in one round: seconds from prompt to new tokens.

    `difference` says how its tokens differ from the reference; None: they do not. `steps_seconds` are of a
    mode: of each call, the mean of a decode step.
    """

    round: int
    contestant: str
    batch: int
    seconds: list[float]
    difference: str | None = None
    steps_seconds: list[float] = []


class SweepBeside(msgspec.Struct, kw_only=True):
    """A sweep of the same code, model and machine: by mode and batch, seconds of a decode step per round."""

    name: str
    started: str
    steps: dict[str, dict[int, list[float]]] = {}


class PeersRun(msgspec.Struct, kw_only=True):
    """A whole comparison. `engine` is that of GET /v1/modes; `cpus` are its cores, and the rivals'.

    `finished` counts the rounds that ended. `ended` None: it did not come to its end, or still runs;
    `stopped_because` is why, None where it was killed.
    """

    format_version: int = FORMAT_VERSION
    started: str
    ended: str | None = None
    stopped_because: str | None = None
    finished: dict[str, int] = {}
    model: str
    model_hash: str
    parameters: int
    prompt_tokens: int
    new_tokens: int
    batches: list[int]
    rounds: int
    calls: int
    seed: int
    cpus: list[int]
    environment: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    contestants: list[Contestant] = []
    rows: list[CallRow] = []
    sweep: SweepBeside | None = None

    @property
    def incomplete(self) -> str | None:
        """What a reader has to know of a comparison that did not come to its end; None: it did."""
        if self.ended is not None and self.stopped_because is None:
            return None
        parts = [f"{count} of {self.rounds} rounds of {what}" for what, count in self.finished.items()]
        why = self.stopped_because or "no end is recorded: it still runs, or was killed"
        return f"INCOMPLETE: {why}; {' and '.join(parts) or 'no round'} finished."


_FILE = DocumentFile(
    PEERS_FILE,
    PeersRun,
    FORMAT_VERSION,
    folder="comparison with rivals",
    writer="launchbound peers",
    mend="make the comparison again",
)
write_peers = _FILE.write
"""Write `peers.json` of a folder atomically."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One contestant at one batch size.

    `seconds` is the median over rounds of their medians, with its interval; `ratio` its time over that of the
    best runtime outside PyTorch, paired within rounds. None where it is `refused`: what computes something
    else is not compared.
    """

    contestant: Contestant
    seconds: Interval
    ratio: Interval | None
    refused: str | None


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """The standings at one batch size, the fastest first.

    `leaving` is the time of the fastest mode over that of the fastest runtime outside PyTorch: above 1,
    leaving buys that much. None where one of the two is missing.
    """

    batch: int
    standings: tuple[Standing, ...]
    best_mode: str | None
    best_outside: str | None
    leaving: Interval | None


def summaries(run: PeersRun) -> list[BatchSummary]:
    """One per batch size that has rows."""
    batches = sorted({row.batch for row in run.rows})
    return [_summary(run, [row for row in run.rows if row.batch == batch]) for batch in batches]


def _summary(run: PeersRun, rows: Sequence[CallRow]) -> BatchSummary:
    known = {one.name: one for one in run.contestants}
    rounds: dict[str, dict[int, float]] = {}
    for row in rows:
        rounds.setdefault(row.contestant, {})[row.round] = median(row.seconds)
    differing = {row.contestant: row.difference for row in reversed(rows) if row.difference is not None}
    refused = {name: known[name].refused(differing.get(name)) for name in rounds}
    fair = {name: own for name, own in rounds.items() if refused[name] is None}
    modes = by_speed({name: own for name, own in fair.items() if known[name].kind == "mode"})
    outside = by_speed({name: own for name, own in fair.items() if known[name].outside_pytorch})
    best_mode, best_outside = (names[0] if names else None for names in (modes, outside))
    standings = tuple(
        Standing(
            contestant=known[name],
            seconds=median_interval(list(rounds[name].values())),
            ratio=_ratio(fair, name, best_outside),
            refused=refused[name],
        )
        for name in by_speed(rounds)
    )
    leaving = _ratio(fair, best_mode, best_outside)
    return BatchSummary(rows[0].batch, standings, best_mode, best_outside, leaving)


def _ratio(fair: Mapping[str, Rounds], name: str | None, other: str | None) -> Interval | None:
    """The time of `name` over that of `other`; None where one is missing or they share no round."""
    if name not in fair or other not in fair or name is None or other is None:
        return None
    own, others = paired(fair[name], fair[other])
    return paired_ratio(own, others) if own else None


def markdown(run: PeersRun) -> str:
    found = summaries(run)
    parts = [
        f"# {run.model} beside other runtimes",
        *([f"**{run.incomplete}**"] if run.incomplete else []),
        *([leaving(found)] if found else []),
        _conditions(run),
        *_calls_table(run, found),
        *_precisions(run),
        agreement(run),
        "## How each was set",
        *(_settings(one) for one in run.contestants if one.unavailable is None and one.settings),
        f"Modes: torch {run.engine.get('torch')}, threads {run.engine.get('threads')}; see `peers.json`.",
    ]
    return "\n\n".join(parts) + "\n"


def leaving(found: list[BatchSummary]) -> str:
    """One sentence: what leaving PyTorch would buy at each batch size."""
    return "; ".join(f"batch {one.batch}: {_leaving(one)}" for one in found) + "."


def _leaving(one: BatchSummary) -> str:
    if (value := one.leaving) is None:
        return "no runtime outside PyTorch to compare with"
    names = f"{one.best_outside} against {one.best_mode}"
    if value.samples < 2 or not value.excludes_one:
        return f"leaving PyTorch would buy nothing that shows ({names}: {ratio(value)})"
    if value.value < 1:
        inverse = Interval(1 / value.value, 1 / value.high, 1 / value.low, value.samples)
        return f"leaving PyTorch would cost {ratio(inverse)} ({names})"
    return f"leaving PyTorch would buy {ratio(value)} ({names})"


def _conditions(run: PeersRun) -> str:
    environment = run.environment
    where = f"core {', '.join(map(str, run.cpus))} of {environment.get('cpu')}"
    load = ", ".join(f"{value:.1f}" for value in environment.get("load_average") or []) or "unknown"
    changed = ", with uncommitted changes" if environment.get("dirty") else ""
    return (
        f"Whole call: {run.prompt_tokens} prompt tokens (each row its own prompt) to {run.new_tokens} new "
        "tokens, greedy, end of text ignored, float32 unless the name says another precision, one thread, "
        f"prefill included, tokenising and HTTP not. Everything on {where}, one contestant at a time; "
        f"{run.rounds} rounds in random order, each with one untimed and {run.calls} timed calls per "
        "contestant and batch. Times are medians over rounds with 95 % intervals; ratios are paired within "
        "rounds (t interval on their logarithms). Of a mode the whole call is an upper estimate: total less "
        "queue, border and tokenising, which holds the decoding of the text as well. All tokens of float32 "
        "equal launchbound's own forward unless said. "
        f"Load average at the start: {load}. Commit {environment.get('commit')}{changed}."
    )


def _calls_table(run: PeersRun, found: list[BatchSummary]) -> Iterator[str]:
    """Contestants by batch size; and below it what took no part."""
    yield "## The model call"
    heads = [f"batch {one.batch}, ms | ÷ {one.best_outside or 'none'}" for one in found]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|---|" * len(found)]
    by_name = [{standing.contestant.name: standing for standing in one.standings} for one in found]
    for contestant in run.contestants:
        cells = [_cells(standings.get(contestant.name)) for standings in by_name]
        lines.append(f"| {_name(contestant)} | {' | '.join(cells)} |")
    yield "\n".join(lines)
    absent = [f"- {one.name}: {one.unavailable}" for one in run.contestants if one.unavailable is not None]
    different = [
        f"- {standing.contestant.name}, batch {one.batch}, {standing.refused}"
        for one in found
        for standing in one.standings
        if standing.refused is not None
    ]
    if absent or different:
        yield "\n".join(["Took no part, or is not compared:", "", *absent, *different])


def _precisions(run: PeersRun) -> Iterator[str]:
    """How well the contestants of other precisions predict a text, beside float32."""
    lines = [f"- {one.name}: {_quality(one.quality)}" for one in run.contestants if one.quality is not None]
    if lines:
        yield "## Other precisions"
        yield (
            "Parity with float32 is not asked of them, and their tokens may be others. They are compared "
            "where they predict the prompts of the load tests with at most "
            f"{MOST_MORE_BITS:.0%} more bits per byte than float32:"
        )
        yield "\n".join(lines)


def _quality(quality: Quality) -> str:
    return (
        f"{quality.bits_per_byte:.4f} bits per byte, float32 {quality.float32_bits_per_byte:.4f} "
        f"({quality.more:+.2%}), on {quality.text_bytes} bytes"
    )


NO_SWEEP = (
    "Whether the modes take as long in a sweep was not checked: beside this folder there is none of the same "
    "commit, model, settings and machine within 3 hours."
)


def agreement(run: PeersRun) -> str:
    """Whether a decode step of each mode took as long as in the sweep beside; cells that both have."""
    if run.sweep is None:
        return NO_SWEEP
    rounds: dict[tuple[str, int], list[float]] = {}
    for row in run.rows:
        if row.steps_seconds:
            rounds.setdefault((row.contestant, row.batch), []).append(median(row.steps_seconds))
    lines = [
        _agreement(f"{mode} at batch {batch}", median_interval(own), median_interval(there))
        for (mode, batch), own in sorted(rounds.items())
        if (there := run.sweep.steps.get(mode, {}).get(batch))
    ]
    head = f"A decode step here and in the sweep {run.sweep.name} ({run.sweep.started}), ms:"
    return "\n".join([head, "", *(lines or ["- no mode and batch size is in both"])])


def _agreement(name: str, here: Interval, there: Interval) -> str:
    change = here.value / there.value - 1
    word = "they agree within their intervals"
    if float("inf") in (here.high, there.high):
        word = "whether they agree is not known: too few rounds for an interval"
    elif here.low > there.high or there.low > here.high:
        word = f"**they do not agree: {abs(change):.0%} {'slower' if change > 0 else 'faster'} here**"
    return f"- {name}: {_span(here)} and {_span(there)}; {word}"


def _settings(one: Contestant) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
    return f"- **{one.name}** ({versions}): `{json.dumps(one.settings, ensure_ascii=False)}`"


def _name(contestant: Contestant) -> str:
    if contestant.kind == "mode" and contestant.effective not in (None, contestant.name):
        return f"{contestant.name} (as {contestant.effective})"
    return contestant.name


def _cells(standing: Standing | None) -> str:
    if standing is None:
        return "– | –"
    against = ratio(standing.ratio) if standing.refused is None else standing.refused.partition(":")[0]
    return f"{_span(standing.seconds)} | {against}"


def _span(seconds: Interval) -> str:
    known = seconds.high != float("inf")
    ends = f"{milliseconds(seconds.low)}–{milliseconds(seconds.high)}" if known else "no interval"
    return f"{milliseconds(seconds.value)} ({ends})"


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with three digits, without the unit."""
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio(interval: Interval | None) -> str:
    """A ratio with its interval: 1.31× (1.22–1.40)."""
    if interval is None:
        return "–"
    if interval.samples < 2:
        return f"{interval.value:.2f}× (no interval)"
    return f"{interval.value:.2f}× ({interval.low:.2f}–{interval.high:.2f})"
