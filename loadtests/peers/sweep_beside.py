"""The sweep of the same hours beside a comparison with rivals: both timed the modes, and should agree."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

from loadtests.peers.results import PeersRun, SweepBeside
from loadtests.run.rows import RowsError, each_row
from loadtests.run.run_file import RUN_FILE, SweepRun, read_run

NEAR = timedelta(hours=3)
"""A sweep that began longer before is no witness: the machine may do something else by now."""

SAME = ("commit", "cpu", "model_hash", "dtype", "threads", "device")


def sweep_beside(run: PeersRun, results: Path) -> SweepBeside | None:
    """The newest sweep in `results` of what `run` compares, begun within NEAR of it; None: there is none."""
    began, found = datetime.fromisoformat(run.started), []
    for path in results.glob(f"*/{RUN_FILE}"):
        try:
            sweep = read_run(path.parent)
            near = abs(began - datetime.fromisoformat(sweep.started)) <= NEAR
            if near and _subject(sweep) == _subject(run):
                steps = _steps(path.parent, run.new_tokens)
                found.append(SweepBeside(name=path.parent.name, started=sweep.started, steps=steps))
        except RowsError:
            continue
    return max(found, key=lambda sweep: sweep.started, default=None)


def _subject(run: SweepRun | PeersRun) -> list[object]:
    known = {**run.environment, **run.engine}
    return [known.get(name) for name in SAME]


def _steps(folder: Path, new_tokens: int) -> dict[str, dict[int, list[float]]]:
    """By mode and batch size, for each round, the median over its requests of the mean decode step."""
    rounds: dict[tuple[str, int, int], list[float]] = {}
    for row in each_row(folder):
        alone = row.concurrency == 1 and not (row.open_loop or row.control or row.merged)
        decode = row.decode
        if row.counts and alone and row.new_tokens == new_tokens and decode and decode.wall_seconds:
            cell = rounds.setdefault((row.mode, row.batch_size, row.round), [])
            cell.append(decode.wall_seconds / decode.steps)
    steps: dict[str, dict[int, list[float]]] = {}
    for (mode, batch, _), seconds in rounds.items():
        steps.setdefault(mode, {}).setdefault(batch, []).append(median(seconds))
    return steps
