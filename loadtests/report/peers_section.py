"""What leaving PyTorch would buy, in a sweep's report: from a comparison with other runtimes made apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtests.peers.results import PeersError, PeersRun, read_peers
from loadtests.peers.tables import BatchSummary, leaving, milliseconds, ratio, summaries
from loadtests.run.run_file import SweepRun


@dataclass(frozen=True, slots=True)
class PeersLine:
    """One batch size: the fastest mode and the fastest runtime outside PyTorch, ms per whole call."""

    batch: int
    mode: str
    mode_milliseconds: str
    outside: str
    outside_milliseconds: str
    ratio: str


@dataclass(frozen=True, slots=True)
class PeersSection:
    """A sentence and a small table; `source` says which comparison they come from."""

    sentence: str
    lines: tuple[PeersLine, ...]
    source: str


def comparable(folder: Path, sweep: SweepRun) -> PeersRun:
    """The comparison in `folder`. Raises PeersError for another model or processor than that of `sweep`."""
    run = read_peers(folder)
    for what, theirs, ours in (
        ("model", run.model_hash, sweep.engine.get("model_hash")),
        ("processor", run.environment.get("cpu"), sweep.environment.get("cpu")),
    ):
        if theirs != ours:
            raise PeersError(f"{folder} was measured on {what} {theirs}, this sweep on {ours}: compare like")
    return run


def peers_section(run: PeersRun) -> PeersSection:
    """The sentence and the table of `run`."""
    found = summaries(run)
    sentence = leaving(found)
    commit = str(run.environment.get("commit"))[:8]
    return PeersSection(
        sentence=" ".join(filter(None, [run.incomplete, sentence[:1].upper() + sentence[1:]])),
        lines=tuple(line for one in found if (line := _line(one)) is not None),
        source=f"measured {run.started}, commit {commit}, {run.prompt_tokens} prompt and {run.new_tokens} "
        f"new tokens, {run.rounds} rounds, on one core",
    )


def _line(one: BatchSummary) -> PeersLine | None:
    by_name = {standing.contestant.name: standing for standing in one.standings}
    if one.best_mode is None or one.best_outside is None:
        return None
    return PeersLine(
        batch=one.batch,
        mode=one.best_mode,
        mode_milliseconds=milliseconds(by_name[one.best_mode].seconds.value),
        outside=one.best_outside,
        outside_milliseconds=milliseconds(by_name[one.best_outside].seconds.value),
        ratio=ratio(one.leaving),
    )
