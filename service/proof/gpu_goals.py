"""What the sections of `make gpu-check` write, and what a GPU must show: goals, judged from records alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from service.modes import MODES
from service.proof.rows import Property, Row, Verdict
from service.records import Outcome, PhaseTimings
from service.statistics.boundedness import decode_bytes
from service.statistics.intervals import Interval, paired_ratio

# Records: JSON lines, each on disk before the next is measured

PATH_VARIABLE = "GPU_CHECK_ROWS"
"""The environment variable that tells a section where its records go."""

Record = dict[str, Any]
BySection = Mapping[str, list[Record]]


class Records:
    """Appends to the file of one section. Infinite values and NaN are written as null."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, **fields: object) -> None:
        """Append one of `kind`; `at` is its instant, in Unix seconds."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode({"kind": kind, "at": time.time(), **fields}) + b"\n")


def own_records() -> Records:
    """Of the section that this process runs. Raises KeyError outside of `make gpu-check`."""
    return Records(Path(os.environ[PATH_VARIABLE]))


def read_records(path: Path) -> list[Record]:
    """Those of a file, without lines that are cut off or written by something else; none without a file."""
    records: list[Record] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            record = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(record, dict) and "kind" in record:
            records.append(record)
    return records


def _of_kind(records: BySection, section: str, kind: str) -> list[Record]:
    return [record for record in records.get(section, []) if record["kind"] == kind]


def _planned(records: BySection, section: str = "ladder") -> Record | None:
    return next(iter(_of_kind(records, section, "plan")), None)


# Cells of the section `ladder`, one per mode and batch, from the records of its jobs, however many

Rounds = dict[int, PhaseTimings]
"""The decode timings of a cell's jobs, by the round that they ran in."""

BASELINE = "eager"
PROFILED_ROUND = 8
"""The last: the profiler slows what follows."""


def cells_of(records: list[Record]) -> list[Record]:
    """A record per mode and batch of which a job ended well: medians per decode step, its profile.

    Their speed-up is against eager in the rounds that both have; None without any. No cell without a plan.
    """
    planned = _planned({"ladder": records})
    found: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in filter(None, map(_outcome, records)):
        found.setdefault((outcome.mode, outcome.batch_size), []).append(outcome)
    if planned is None:
        return []
    return [
        _cell(found[mode, batch], _timed(found.get((BASELINE, batch), [])))
        for mode in planned["modes"]
        for batch in planned["batches"]
        if (mode, batch) in found
    ]


def _outcome(record: Record) -> Outcome | None:
    """The engine's, without its texts; None for anything but a job that ended well and took steps."""
    if record["kind"] != "job" or record["outcome"] != "ok":
        return None
    try:
        outcome = msgspec.convert({**record, "kind": record["outcome"]}, Outcome)
    except msgspec.ValidationError:
        return None  # one broken record costs the others no cell
    return outcome if outcome.timings and outcome.timings.decode.steps else None


def _cell(outcomes: Sequence[Outcome], eager: Rounds) -> Record:
    timed, newest = _timed(outcomes), outcomes[-1]
    profiles = [phase for one in outcomes for phase in one.profile or () if phase.phase == "decode"]
    counts = ("kernel_seconds", "kernels", "launches", "graph_launches")
    both = sorted(timed.keys() & eager.keys())
    speedup = (
        paired_ratio([_period(eager[n]) for n in both], [_period(timed[n]) for n in both]) if both else None
    )
    known = speedup if speedup and speedup.samples > 1 else None
    phases = timed.values()
    return {
        "kind": "cell",
        "mode": newest.mode,
        "effective": newest.effective,
        "batch": newest.batch_size,
        "rounds": len(timed),
        "step_seconds": _median(map(_period, phases)),
        "dispatch_seconds": _median(_per_step(p.dispatch_seconds, p) for p in phases),
        "span_seconds": _median(_per_step(p.device_span_seconds, p) for p in phases),
        "speedup": speedup.value if speedup else None,
        "low": known.low if known else None,
        "high": known.high if known else None,
        # None: not profiled, or the profiler saw nothing.
        **{name: getattr(profiles[0], name) if profiles else None for name in counts},
    }


def _timed(outcomes: Iterable[Outcome]) -> Rounds:
    """Of the rounds without the profiler, which disturbs times also where it finds nothing."""
    rounds = {int(one.id.rpartition("-")[2]): one.timings for one in outcomes}
    return {n: timings.decode for n, timings in rounds.items() if timings and n != PROFILED_ROUND}


def _period(phase: PhaseTimings) -> float:
    """Seconds per step, with what the engine does between two steps."""
    return (phase.period_seconds or 0.0) / phase.steps


def _per_step(seconds: float | None, phase: PhaseTimings) -> float | None:
    return None if seconds is None else seconds / phase.steps


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


# Goals


class Goal(Row, frozen=True, kw_only=True):
    """A row whose note is what was found. Goals of speed do not decide the exit code.

    A deciding goal holds only where it passes: what was not measured, or is undecided, is no success.
    """

    decides: bool = True

    @property
    def holds(self) -> bool:
        """Whether the exit code may be 0 in spite of it."""
        return self.verdict == "pass" or not self.decides


def _goal(
    name: str, bound: str, holds: bool | None, found: str = "not measured", decides: bool = True
) -> Goal:
    """`holds` None: what was found says nothing."""
    verdict: Verdict = "not measurable here" if holds is None else "pass" if holds else "fail"
    return Goal(name=name, bound=bound, verdict=verdict, note=found, decides=decides)


def goals_of(records: BySection, started: float) -> list[Goal]:
    """Those of part 1, of a check that `started` at that instant, in Unix seconds."""
    return [
        _first_record(records, started),
        *(_parity(records, section) for section in ("ladder", "float32")),
        _tests(records),
        _jobs(records),
        _replays(records),
        _graph_launches(records),
        _other_launches(records),
        *_sessions(records),
        _instrumentation(records),
    ]


GRAPHS = "reduce-overhead"
FIRST_SECONDS = 60.0
MOST_SECONDS = 480.0
"""Of one part, all sections together: a GPU is lent for minutes. The limits of a part sum up to no more."""


def _first_record(records: BySection, started: float) -> Goal:
    # Cells, which are made of records, have no instant.
    instants = [record["at"] for found in records.values() for record in found if "at" in record]
    seconds = min(instants, default=float("inf")) - started
    found = f"{seconds:.0f} s" if instants else "none"
    return _goal("first result on disk", f"≤ {FIRST_SECONDS:.0f} s", seconds <= FIRST_SECONDS, found)


def _parity(records: BySection, section: str) -> Goal:
    dtype = "bfloat16" if section == "ladder" else section
    name, bound = f"parity with eager, {dtype}", "every mode ready"
    planned = _planned(records, section)
    if planned is None:
        return _goal(name, bound, None)
    states = dict.fromkeys(planned["modes"], "never warmed up")
    states |= {record["mode"]: record["state"] for record in _of_kind(records, section, "mode")}
    others = [f"{mode}: {state}" for mode, state in states.items() if state != "ready"]
    return _goal(name, bound, not others, "; ".join(others) or f"{len(states)} of {len(states)} ready")


def _tests(records: BySection) -> Goal:
    name, bound = "tests/gpu", "all pass"
    collected = _of_kind(records, "tests", "collected")
    if not collected:
        return _goal(name, bound, None, "not collected")
    outcomes = [record["outcome"] for record in _of_kind(records, "tests", "test")]
    wanted, passed = collected[0]["count"], outcomes.count("passed")
    texts = [f"{outcomes.count(o)} {o}" for o in ("passed", "failed", "skipped") if o in outcomes]
    return _goal(name, bound, 0 < wanted == passed, f"of {wanted}: {', '.join(texts) or 'none ran'}")


def _jobs(records: BySection) -> Goal:
    name, bound, planned = "jobs of the ladder", "all well", _planned(records)
    if planned is None:
        return _goal(name, bound, None)
    good = [record["outcome"] for record in _of_kind(records, "ladder", "job")].count("ok")
    return _goal(name, bound, 0 < planned["jobs"] == good, f"{good} of {planned['jobs']} well")


def _replays(records: BySection) -> Goal:
    """A mode that serves without the replay it promises is ready, so that parity does not show it."""
    name, bound = "modes that promise graph replay", "each replays, proved"
    planned = _planned(records)
    newest = {record["mode"]: record for record in _of_kind(records, "ladder", "mode")}
    promised = [mode for mode in (planned["modes"] if planned else []) if MODES[mode].cuda.graph_replay]
    if not promised or not newest.keys() >= set(promised):
        return _goal(name, bound, None)
    others = [text for text in (_not_replayed(newest[mode]) for mode in promised) if text]
    return _goal(name, bound, not others, "; ".join(others) or f"all {len(promised)}")


def _not_replayed(record: Record) -> str | None:
    if record["state"] != "ready":
        return f"{record['mode']}: {record['state']}"
    replayed = record["effective"] == record["mode"] and not record["reason"]
    return None if replayed else f"{record['mode']} as {record['effective']}: {record['reason']}"


def _graph_cells(records: BySection) -> dict[int, Record | None]:
    """Of the mode that replays, by the batches that are planned."""
    planned = _planned(records)
    found: dict[int, Record | None] = dict.fromkeys(planned["batches"] if planned else ())
    cells = _of_kind(records, "ladder", "cell")
    return found | {record["batch"]: record for record in cells if record["mode"] == GRAPHS}


def _graph_launches(records: BySection) -> Goal:
    counts = {n: cell and cell["graph_launches"] for n, cell in _graph_cells(records).items()}
    shown = {n: "unknown" if count is None else f"{count:g}" for n, count in counts.items()}
    text = ", ".join(f"{count} at batch {n}" for n, count in shown.items()) or "not measured"
    known = bool(counts) and None not in counts.values()
    holds = all(count == 1 for count in counts.values()) if known else None
    return _goal(f"{GRAPHS}: graph launches per decode step", "1", holds, text)


def _other_launches(records: BySection) -> Goal:
    name, bound = f"{GRAPHS}: other launches per decode step", "≤ 1"
    cells = _graph_cells(records)
    counted = [
        cell for cell in cells.values() if cell and None not in (cell["launches"], cell["graph_launches"])
    ]
    if not counted or len(counted) < len(cells):
        return _goal(name, bound, None, f"measured at {len(counted)} batches")
    most = max(cell["launches"] - cell["graph_launches"] for cell in counted)
    return _goal(name, bound, most <= 1, f"at most {most:g}")


# The section `profiler`: its ways to a step's device time agree, and measuring costs little

SESSIONS = 4
APART = 0.05
WITHIN = f"within {APART:.0%}"
OVERHEAD = Property("instrumentation full / off, decode step", "≤ 1.01", most=1.01)


def _sessions(records: BySection) -> Iterator[Goal]:
    """Kernels by window against queued replays.

    A replay lasts at least as long as its kernels, and at most as long as their span under the profiler,
    which lengthens the gaps between a graph's nodes: by how much only informs.
    """
    written = {record["session"]: record for record in _of_kind(records, "profiler", "session")}
    windows, spans = (
        [_of_session(written.get(number, {}).get(field, [])) for number in range(1, SESSIONS + 1)]
        for field in ("busy_seconds_by_window", "span_seconds_by_window")
    )
    yield _alike("kernels by window, sessions over the first", windows[:1], windows, decides=True)
    unprofiled = _of_kind(records, "profiler", "unprofiled")[:1]
    # Where the host could not queue ahead, the device idled in between: that is not what a step takes.
    queued = [None if record["upper_bound"] else record["queued_seconds"] for record in unprofiled]
    yield _at_most("a step's kernels by window over queued replays", windows, queued)
    yield _at_most("queued replays over a step's span by window", queued, spans)
    yield _alike("a step's span by window over queued replays", queued, spans)


def _of_session(values: list[float | None]) -> float | None:
    """The median of a session's steps; None without any, and where one of them had no kernels."""
    return None if None in values else _median(values)


def _alike(
    name: str, below: Sequence[float | None], above: Sequence[float | None], decides: bool = False
) -> Goal:
    """Whether every one of `above` over the one of `below` is near 1; shows the farthest."""
    reference = below[0] if below else None
    if not reference or not above or None in above:
        return _goal(name, WITHIN, None, decides=decides)
    ratios = [value / reference for value in above if value is not None]
    farthest = max(ratios, key=lambda ratio: abs(ratio - 1))
    return _goal(name, WITHIN, abs(farthest - 1) <= APART, f"{farthest:.3f}", decides)


def _at_most(name: str, parts: list[float | None], wholes: list[float | None]) -> Goal:
    """Whether none of `parts` is longer than any of `wholes`; shows the longest over the shortest."""
    bound = f"≤ {1 + APART}"
    known = [value for value in (*parts, *wholes) if value]
    if not parts or not wholes or len(known) < len(parts) + len(wholes):
        return _goal(name, bound, None)
    ratio = max(known[: len(parts)]) / min(known[len(parts) :])
    return _goal(name, bound, ratio <= 1 + APART, f"{ratio:.3f}")


def _instrumentation(records: BySection) -> Goal:
    found = _of_kind(records, "profiler", "instrumentation")
    if not found or None in (found[0]["low"], found[0]["high"]):
        return _goal(OVERHEAD.name, OVERHEAD.bound, None)
    value, low, high = (found[0][end] for end in ("value", "low", "high"))
    row = OVERHEAD.within(Interval(value, low, high, found[0].get("rounds", 0)))
    return Goal(**{**msgspec.structs.asdict(row), "note": f"{value:.3f} [{low:.3f}, {high:.3f}]"})


# Sizes: served tokens of larger models. Goals that are of one kind of GPU, and only inform

SPECIFIED = {
    "NVIDIA H100 80GB HBM3": 3.35e12,
    "NVIDIA H200": 4.8e12,
    "NVIDIA A100-SXM4-80GB": 2.039e12,
}
"""Bytes per second of a card's memory by the vendor's data sheet, by the name that torch has for it."""

MOST_DEVICE_MILLISECONDS, MOST_WALL_MILLISECONDS = 0.30, 0.34
LEAST_SHARE = 0.60


def sizes_of(records: list[Record]) -> list[Record]:
    """A record per mode and batch of a section that served, as far as it came; none without a warm engine.

    `wall_seconds` is the period of a decode step as a request had it, `device_seconds` that of queued steps.
    """
    planned, engines = _planned({"ladder": records}), [one for one in records if one["kind"] == "engine"]
    if planned is None or not engines:
        return []
    cells = {(cell["mode"], cell["batch"]): cell for cell in cells_of(records)}
    times = {
        (record["mode"], time["batch"]): time
        for record in records
        if record["kind"] == "mode"
        for time in record.get("device_times", [])
        if time["phase"] == "decode"
    }
    return [
        _size(planned, engines[-1], (mode, batch), cells.get((mode, batch)), times.get((mode, batch)))
        for mode in planned["modes"]
        for batch in planned["batches"]
    ]


def _size(
    planned: Record, engine: Record, key: tuple[str, int], cell: Record | None, time: Record | None
) -> Record:
    mode, batch = key
    wall, device = cell and cell["step_seconds"], time and time["seconds"]
    moved = decode_bytes(engine["step_bytes"], batch, planned["positions"]) if engine["step_bytes"] else None
    rate = moved / device if moved and device else None
    specified, copied = SPECIFIED.get(engine["device_name"]), engine["memory_bandwidth"]
    return {
        "kind": "size",
        "model": planned["model"],
        "dtype": engine["dtype"],
        "mode": mode,
        "effective": cell and cell["effective"],
        "batch": batch,
        "device_seconds": device,
        "device_upper_bound": time and time["upper_bound"],
        "wall_seconds": wall,
        "tokens_per_second": batch / wall if wall else None,
        "specified_share": rate / specified if rate and specified else None,
        "copy_share": rate / copied["bytes_per_second"] if rate and copied else None,
        "card": engine["device_name"],
    }


def size_goals(sizes: Sequence[Record]) -> list[Goal]:
    """Of a token of `small` the device's and the wall time; of one of `base` the share of the bandwidth."""
    found = {one["model"]: one for one in sizes if (one["mode"], one["batch"]) == (GRAPHS, 1)}
    small, base = found.get("small", {}), found.get("base", {})
    of = f"bfloat16, batch 1, {GRAPHS}"
    device = _milliseconds(
        f"small, {of}: device time per token", small.get("device_seconds"), MOST_DEVICE_MILLISECONDS
    )
    wall = _milliseconds(
        f"small, {of}: wall time per token", small.get("wall_seconds"), MOST_WALL_MILLISECONDS
    )
    return [device, wall, _bandwidth(f"base, {of}: share of the card's specified bandwidth", base)]


def _milliseconds(name: str, seconds: float | None, most: float) -> Goal:
    bound = f"≤ {most:.2f} ms"
    if seconds is None:
        return _goal(name, bound, None, decides=False)
    return _goal(name, bound, seconds * 1e3 <= most, f"{seconds * 1e3:.3f} ms", decides=False)


def _bandwidth(name: str, base: Record) -> Goal:
    bound, share, copied = f"≥ {LEAST_SHARE:.0%}", base.get("specified_share"), base.get("copy_share")
    if share is None and copied is None:
        return _goal(name, bound, None, decides=False)
    beside = f"{copied:.0%} of the measured copy bandwidth" if copied else "copy bandwidth unknown"
    if share is None:
        return _goal(name, bound, None, f"{base['card']} is not in the table; {beside}", decides=False)
    return _goal(name, bound, share >= LEAST_SHARE, f"{share:.0%}; {beside}", decides=False)
