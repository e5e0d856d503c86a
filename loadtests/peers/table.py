"""`peers.md`: the standings as Markdown, what was compared, and how every contestant was set."""

from __future__ import annotations

import json
from collections.abc import Iterator

from loadtests.peers.results import Contestant, Limit, PeersRun
from loadtests.peers.summary import BatchSummary, Standing, added_ratio, service_standings, summaries
from service.statistics.intervals import Interval

MARKDOWN_FILE = "peers.md"


def markdown(run: PeersRun) -> str:
    """The whole page."""
    found = summaries(run)
    parts = [
        f"# {run.model} beside other runtimes",
        *([f"**{run.incomplete}**"] if run.incomplete else []),
        *([leaving(found)] if found else []),
        conditions(run),
        *calls_table(run, found),
        *service_table(run),
        "## How each was set",
        *(settings_line(one) for one in run.contestants if one.unavailable is None and one.settings),
        f"Modes: torch {run.engine.get('torch')}, threads {run.engine.get('threads')}; see `peers.json`.",
    ]
    return "\n\n".join(parts) + "\n"


def leaving(found: list[BatchSummary]) -> str:
    """One sentence: what leaving PyTorch would buy at each batch size."""
    return "; ".join(_leaving(one) for one in found) + "."


def _leaving(one: BatchSummary) -> str:
    where = f"batch {one.batch}: "
    if one.leaving is None:
        return where + "no runtime outside PyTorch to compare with"
    value, names = one.leaving, f"{one.best_outside} against {one.best_mode}"
    if value.samples < 2 or not value.excludes_one:
        return f"{where}leaving PyTorch would buy nothing that shows ({names}: {ratio(value)})"
    if value.value < 1:
        inverse = Interval(1 / value.value, 1 / value.high, 1 / value.low, value.samples)
        return f"{where}leaving PyTorch would cost {ratio(inverse)} ({names})"
    return f"{where}leaving PyTorch would buy {ratio(value)} ({names})"


def conditions(run: PeersRun) -> str:
    """What was measured, under which conditions."""
    environment = run.environment
    where = f"core {', '.join(map(str, run.cpus))} of {environment.get('cpu')}"
    load = ", ".join(f"{value:.1f}" for value in environment.get("load_average") or []) or "unknown"
    changed = ", with uncommitted changes" if environment.get("dirty") else ""
    return (
        f"Whole call: {run.prompt_tokens} prompt tokens (each row its own prompt) to {run.new_tokens} new "
        "tokens, greedy, end of text ignored, float32, one thread, prefill included, tokenising and HTTP "
        f"not. Everything on {where}, one contestant at a time; {run.rounds} rounds in random order, each "
        f"with one untimed and {run.calls} timed calls per contestant and batch. Times are medians over "
        "rounds with 95 % intervals; ratios are paired within rounds (t interval on their logarithms). Of a "
        "mode the whole call is an upper estimate: total less queue, border and tokenising, which holds the "
        "decoding of the text as well. All tokens equal launchbound's own float32 forward unless said. "
        f"Load average at the start: {load}. Commit {environment.get('commit')}{changed}."
    )


def calls_table(run: PeersRun, found: list[BatchSummary]) -> Iterator[str]:
    """The first table: contestants by batch size; and below it what took no part."""
    yield "## The model call"
    heads = [f"batch {one.batch}, ms | ÷ {one.best_outside or 'none'}" for one in found]
    lines = [
        "| | " + " | ".join(heads) + " |",
        "|---|" + "---|---|" * len(found),
    ]
    by_name = [{standing.contestant.name: standing for standing in one.standings} for one in found]
    for contestant in (one for one in run.contestants if one.kind != "server"):
        cells = [_cells(standings.get(contestant.name)) for standings in by_name]
        lines.append(f"| {_name(contestant)} | " + " | ".join(cells) + " |")
    if run.limit is not None:
        least = f"≥ {milliseconds(run.limit.seconds)}"
        lines.append("| *bandwidth limit (estimate)* | " + " | ".join(f"{least} |" for _ in found) + " |")
    yield "\n".join(lines)
    if run.limit is not None:
        yield limit_line(run.limit)
    modes = [
        f"{standing.contestant.name} at batch {one.batch}: steps {milliseconds(standing.steps)}, "
        f"HTTP {milliseconds(standing.latency)}"
        for one in found
        for standing in one.standings
        if standing.contestant.name == one.best_mode
    ]
    if modes:
        yield "Of the fastest mode, the steps alone and the whole HTTP request, ms: " + "; ".join(modes) + "."
    yield from _remarks(run, found)


def _remarks(run: PeersRun, found: list[BatchSummary]) -> Iterator[str]:
    absent = [f"- {one.name}: {one.unavailable}" for one in run.contestants if one.unavailable is not None]
    different = [
        f"- {standing.contestant.name}, batch {one.batch}, other tokens: {standing.difference}"
        for one in found
        for standing in one.standings
        if standing.difference is not None
    ]
    if absent or different:
        yield "\n".join(["Took no part, or is not compared:", "", *absent, *different])


def limit_line(limit: Limit) -> str:
    """What the bandwidth limit is, and how it was found."""
    return (
        f"Bandwidth limit: {limit.steps} steps × {limit.weight_bytes / 1e6:.1f} MB of float32 weights, read "
        f"once each, at {limit.bytes_per_second / 1e9:.1f} GB/s, the fastest that one core read a buffer of "
        f"{limit.buffer_bytes / 1e6:.1f} MB. No float32 runtime can be faster on this core; arithmetic, "
        "which grows with the batch, is not in it."
    )


def service_table(run: PeersRun) -> Iterator[str]:
    """The second table; nothing where no server was measured."""
    standings = service_standings(run)
    if not standings:
        return
    yield "## The service around it"
    lines = ["| | adds, p50, ms | ÷ launchbound | latency, p50, ms |", "|---|---|---|---|"]
    for standing in standings:
        name = standing.contestant.name
        found = added_ratio(run, name, "launchbound")
        mode = f" ({standing.contestant.effective})" if standing.contestant.effective else ""
        against = "1" if name == "launchbound" else ratio(found)
        lines.append(f"| {name}{mode} | {span(standing.added)} | {against} | {span(standing.latency)} |")
    yield "\n".join(lines)
    outside = [
        f"{milliseconds(one.outside_call.value)} ms of that is outside its engine's call"
        for one in standings
        if one.outside_call is not None
    ]
    yield (
        "Latency less model call, request by request, concurrency 1, batch 1, one connection kept open. Of "
        "launchbound the model call is its steps: what its engine does between them counts as added"
        + (f" ({outside[0]})" if outside else "")
        + "; of the others it is the whole of `generate` of transformers, their work between steps included. "
        "All tokenise, and answer the same JSON; the floor returns it without a model."
    )


def settings_line(one: Contestant) -> str:
    """Versions and settings of one contestant."""
    versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
    return f"- **{one.name}** ({versions}): `{json.dumps(one.settings, ensure_ascii=False)}`"


def _name(contestant: Contestant) -> str:
    if contestant.kind == "mode" and contestant.effective not in (None, contestant.name):
        return f"{contestant.name} (as {contestant.effective})"
    return contestant.name


def _cells(standing: Standing | None) -> str:
    if standing is None:
        return "– | –"
    return f"{span(standing.seconds)} | {'other tokens' if standing.difference else ratio(standing.ratio)}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds with three digits, without the unit."""
    if seconds is None:
        return "–"
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def span(interval: Interval) -> str:
    """Milliseconds with the interval's ends."""
    if interval.high == float("inf"):
        return f"{milliseconds(interval.value)} (no interval)"
    ends = f"{milliseconds(interval.low)}–{milliseconds(interval.high)}"
    return f"{milliseconds(interval.value)} ({ends})"


def ratio(interval: Interval | None) -> str:
    """A ratio with its interval: 1.31× (1.22–1.40)."""
    if interval is None:
        return "–"
    if interval.samples < 2:
        return f"{interval.value:.2f}× (no interval)"
    return f"{interval.value:.2f}× ({interval.low:.2f}–{interval.high:.2f})"
