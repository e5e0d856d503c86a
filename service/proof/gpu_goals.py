"""What the sections of `make gpu-check` write, and what a GPU must show: goals, judged from records alone."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

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


class Records(NamedTuple):
    """Appends to the file of one section. Infinite values and NaN are written as null."""

    path: Path

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


def _of_kind(records: Iterable[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind]


def _first(records: Iterable[Record], kind: str) -> Record | None:
    return next(iter(_of_kind(records, kind)), None)


# Cells of the section `ladder`, one per mode and batch, from the records of its jobs, however many

PER_STEP = {
    "step_seconds": "period_seconds", "dispatch_seconds": "dispatch_seconds",
    "span_seconds": "device_span_seconds",
}  # fmt: skip
"""What a cell has of the timings of a decode, per step; the period has what is done between two steps."""

Rounds = dict[int, dict[str, Any]]
"""PER_STEP of a cell's jobs, by the round that they ran in."""

BASELINE = "eager"
PROFILED_ROUND = 8
"""The last: the profiler slows what follows."""

COUNTED = ("kernel_seconds", "kernels", "launches", "graph_launches")
"""Of a profiled decode step."""


def cells_of(records: list[Record]) -> list[Record]:
    """A record per planned mode and batch of which a job ended well: medians per decode step, its profile,
    and the speed-up against eager in the rounds that both have.
    """
    planned = _first(records, "plan")
    if planned is None:
        return []
    found: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in filter(None, map(_outcome, _of_kind(records, "job"))):
        found.setdefault((outcome.mode, outcome.batch_size), []).append(outcome)
    return [
        _cell(found[mode, batch], _timed(found.get((BASELINE, batch), [])))
        for mode, batch in product(planned["modes"], planned["batches"])
        if (mode, batch) in found
    ]


def _outcome(record: Record) -> Outcome | None:
    """The engine's, without its texts; None for anything but a job that ended well and took steps."""
    if record["outcome"] != "ok":
        return None
    try:
        outcome = msgspec.convert({**record, "kind": record["outcome"]}, Outcome)
    except msgspec.ValidationError:
        return None  # one broken record costs the others no cell
    return outcome if outcome.timings and outcome.timings.decode.steps else None


def _cell(outcomes: Sequence[Outcome], eager: Rounds) -> Record:
    timed, newest = _timed(outcomes), outcomes[-1]
    profiles = [phase for one in outcomes for phase in one.profile or () if phase.phase == "decode"]
    both = ((eager[n]["step_seconds"], timed[n]["step_seconds"]) for n in sorted(timed.keys() & eager.keys()))
    pairs = [(baseline, own) for baseline, own in both if baseline and own]
    speedup = paired_ratio([one for one, _ in pairs], [own for _, own in pairs]) if pairs else None
    known = speedup if speedup and speedup.samples > 1 else None
    return {
        "kind": "cell",
        "mode": newest.mode,
        "effective": newest.effective,
        "batch": newest.batch_size,
        "rounds": len(timed),
        **{name: _median(seconds[name] for seconds in timed.values()) for name in PER_STEP},
        "speedup": speedup.value if speedup else None,
        "low": known.low if known else None,
        "high": known.high if known else None,
        # None: not profiled, or the profiler saw nothing.
        **{name: getattr(profiles[0], name) if profiles else None for name in COUNTED},
    }


def _timed(outcomes: Iterable[Outcome]) -> Rounds:
    """Of the rounds without the profiler, which disturbs times also where it finds nothing."""
    rounds = {int(one.id.rpartition("-")[2]): one.timings for one in outcomes}
    return {n: _per_step(timings.decode) for n, timings in rounds.items() if timings and n != PROFILED_ROUND}


def _per_step(phase: PhaseTimings) -> dict[str, Any]:
    seconds = {name: getattr(phase, field) for name, field in PER_STEP.items()}
    return {name: None if value is None else value / phase.steps for name, value in seconds.items()}


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


class Goal(Row, frozen=True, kw_only=True):
    """A row whose note is what was found. Goals of speed do not decide the exit code."""

    decides: bool = True

    @property
    def holds(self) -> bool:
        """Whether the exit code may be 0: what was not measured, or is undecided, is no success."""
        return self.verdict == "pass" or not self.decides


Judged = tuple[bool | None, str]
"""Whether a goal is met, None where what was found says nothing; and what was found."""

UNKNOWN: Judged = None, "not measured"


def _goal(name: str, bound: str, judged: Judged, decides: bool = True) -> Goal:
    holds, found = judged
    verdict: Verdict = "not measurable here" if holds is None else "pass" if holds else "fail"
    return Goal(name=name, bound=bound, verdict=verdict, note=found, decides=decides)


GRAPHS = "reduce-overhead"
FIRST_SECONDS = 60.0
MOST_SECONDS = 480.0
"""Of one part, all sections together: a GPU is lent for minutes. The limits of a part sum up to no more."""


def goals_of(records: BySection, started: float) -> list[Goal]:
    """Those of part 1, of a check that `started` at that instant, in Unix seconds."""
    sections = ("profiler", "tests", "ladder", "float32")
    profiler, tests, ladder, float32 = (records.get(name, []) for name in sections)
    cells = _graph_cells(ladder)
    return [
        _goal("first result on disk", f"≤ {FIRST_SECONDS:.0f} s", _first_record(records, started)),
        _goal("parity with eager, bfloat16", "every mode ready", _parity(ladder)),
        _goal("parity with eager, float32", "every mode ready", _parity(float32)),
        _goal("tests/gpu", "all pass", _tests(tests)),
        _goal("jobs of the ladder", "all well", _jobs(ladder)),
        _goal("modes that promise graph replay", "each replays, proved", _replays(ladder)),
        _goal(f"{GRAPHS}: graph launches per decode step", "1", _graph_launches(cells)),
        _goal(f"{GRAPHS}: other launches per decode step", "≤ 1", _other_launches(cells)),
        *_sessions(profiler),
        _instrumentation(_first(profiler, "instrumentation")),
    ]


def _first_record(records: BySection, started: float) -> Judged:
    # Cells, which are made of records, have no instant.
    instants = [record["at"] for found in records.values() for record in found if "at" in record]
    seconds = min(instants, default=float("inf")) - started
    return seconds <= FIRST_SECONDS, f"{seconds:.0f} s" if instants else "none"


def _parity(section: list[Record]) -> Judged:
    planned = _first(section, "plan")
    if planned is None:
        return UNKNOWN
    states = dict.fromkeys(planned["modes"], "never warmed up")
    states |= {record["mode"]: record["state"] for record in _of_kind(section, "mode")}
    others = [f"{mode}: {state}" for mode, state in states.items() if state != "ready"]
    return not others, "; ".join(others) or f"{len(states)} of {len(states)} ready"


def _tests(tests: list[Record]) -> Judged:
    collected = _first(tests, "collected")
    if collected is None:
        return None, "not collected"
    outcomes = Counter(record["outcome"] for record in _of_kind(tests, "test"))
    texts = [f"{outcomes[one]} {one}" for one in ("passed", "failed", "skipped") if one in outcomes]
    wanted = collected["count"]
    return 0 < wanted == outcomes["passed"], f"of {wanted}: {', '.join(texts) or 'none ran'}"


def _jobs(ladder: list[Record]) -> Judged:
    planned = _first(ladder, "plan")
    if planned is None:
        return UNKNOWN
    good = [record["outcome"] for record in _of_kind(ladder, "job")].count("ok")
    return 0 < planned["jobs"] == good, f"{good} of {planned['jobs']} well"


def _replays(ladder: list[Record]) -> Judged:
    """A mode that serves without the replay it promises is ready, so that parity does not show it."""
    planned = _first(ladder, "plan")
    newest = {record["mode"]: record for record in _of_kind(ladder, "mode")}
    promised = [mode for mode in (planned["modes"] if planned else []) if MODES[mode].cuda.graph_replay]
    if not promised or not newest.keys() >= set(promised):
        return UNKNOWN
    served = {mode: [newest[mode][field] for field in ("state", "effective", "reason")] for mode in promised}
    others = [
        f"{mode} as {effective}: {reason}" if state == "ready" else f"{mode}: {state}"
        for mode, (state, effective, reason) in served.items()
        if (state, effective) != ("ready", mode) or reason
    ]
    return not others, "; ".join(others) or f"all {len(promised)}"


def _graph_cells(ladder: list[Record]) -> dict[int, Record | None]:
    """Of the mode that replays, by the batches that are planned."""
    planned = _first(ladder, "plan")
    found: dict[int, Record | None] = dict.fromkeys(planned["batches"] if planned else ())
    return found | {cell["batch"]: cell for cell in _of_kind(ladder, "cell") if cell["mode"] == GRAPHS}


def _graph_launches(cells: Mapping[int, Record | None]) -> Judged:
    counts = {n: cell and cell["graph_launches"] for n, cell in cells.items()}
    shown = {n: "unknown" if count is None else f"{count:g}" for n, count in counts.items()}
    text = ", ".join(f"{count} at batch {n}" for n, count in shown.items())
    if not counts or None in counts.values():
        return None, text or "not measured"
    return all(count == 1 for count in counts.values()), text


def _other_launches(cells: Mapping[int, Record | None]) -> Judged:
    counted = [
        cell["launches"] - cell["graph_launches"]
        for cell in cells.values()
        if cell and None not in (cell["launches"], cell["graph_launches"])
    ]
    if not counted or len(counted) < len(cells):
        return None, f"measured at {len(counted)} batches"
    return max(counted) <= 1, f"at most {max(counted):g}"


# The section `profiler`: its ways to a step's device time agree, and measuring costs little

SESSIONS = 4
OVERHEAD = Property("instrumentation full / off, decode step", "≤ 1.01", most=1.01)
Seconds = list[float | None]
Bound = tuple[str, float, float]
WITHIN: Bound = "within 5%", 0.95, 1.05
AT_MOST: Bound = "≤ 1.05", -math.inf, 1.05


def _sessions(profiler: list[Record]) -> list[Goal]:
    """A replay lasts at least as long as its kernels, and at most as long as their span under the profiler,
    which lengthens the gaps between a graph's nodes: by how much only informs.
    """
    written = {record["session"]: record for record in _of_kind(profiler, "session")}
    windows, spans = (
        [_of_session(written.get(number, {}).get(field, [])) for number in range(1, SESSIONS + 1)]
        for field in ("busy_seconds_by_window", "span_seconds_by_window")
    )
    # Where the host could not queue ahead, the device idled in between: that is not what a step takes.
    unprofiled = _first(profiler, "unprofiled") or {"upper_bound": True}
    queued = [None if unprofiled["upper_bound"] else unprofiled["queued_seconds"]]
    return [
        _ratios("kernels by window, sessions over the first", WITHIN, windows, windows[:1]),
        _ratios("a step's kernels by window over queued replays", AT_MOST, windows, queued),
        _ratios("queued replays over a step's span by window", AT_MOST, queued, spans),
        _ratios("a step's span by window over queued replays", WITHIN, spans, queued, decides=False),
    ]


def _of_session(values: Seconds) -> float | None:
    """The median of a session's steps; None without any, and where one of them had no kernels."""
    return None if None in values else _median(values)


def _ratios(name: str, bound: Bound, above: Seconds, below: Seconds, decides: bool = True) -> Goal:
    """Of each of `above` over each of `below`, by the farthest; not measured where any is unknown."""
    text, least, most = bound
    ratios = [one / other for one, other in product(above, below) if one and other]
    if not ratios or len(ratios) < len(above) * len(below):
        return _goal(name, text, UNKNOWN, decides)
    farthest = max(ratios, key=lambda ratio: max(least - ratio, ratio - most))
    return _goal(name, text, (least <= farthest <= most, f"{farthest:.3f}"), decides)


def _instrumentation(found: Record | None) -> Goal:
    if found is None or None in (found["low"], found["high"]):
        return _goal(OVERHEAD.name, OVERHEAD.bound, UNKNOWN)
    value, low, high = (found[end] for end in ("value", "low", "high"))
    row = OVERHEAD.within(Interval(value, low, high, found.get("rounds", 0)))
    return Goal(**{**msgspec.structs.asdict(row), "note": f"{value:.3f} [{low:.3f}, {high:.3f}]"})


# Sizes: served tokens of larger models. Goals that are of one kind of GPU, and only inform

SPECIFIED = {"NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA H200": 4.8e12, "NVIDIA A100-SXM4-80GB": 2.039e12}
"""Bytes per second of a card's memory by the vendor's data sheet, by the name that torch has for it."""

MOST_DEVICE_SECONDS, MOST_WALL_SECONDS = 0.30e-3, 0.34e-3
LEAST_SHARE = 0.60


def sizes_of(records: list[Record]) -> list[Record]:
    """A record per mode and batch of a section whose engine became warm: `wall_seconds` is the period of a
    decode step as a request had it, `device_seconds` that of queued steps.
    """
    planned, engines = _first(records, "plan"), _of_kind(records, "engine")
    if planned is None or not engines:
        return []
    cells = {(cell["mode"], cell["batch"]): cell for cell in cells_of(records)}
    times = {
        (record["mode"], time["batch"]): time
        for record in _of_kind(records, "mode")
        for time in record.get("device_times", [])
        if time["phase"] == "decode"
    }
    keys = product(planned["modes"], planned["batches"])
    return [_size(planned, engines[-1], key, cells.get(key), times.get(key)) for key in keys]


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
    goals: list[Goal] = []
    for what, most in (("device", MOST_DEVICE_SECONDS), ("wall", MOST_WALL_SECONDS)):
        seconds = small.get(f"{what}_seconds")
        judged = UNKNOWN if seconds is None else (seconds <= most, f"{seconds * 1e3:.3f} ms")
        name, bound = f"small, {of}: {what} time per token", f"≤ {most * 1e3:.2f} ms"
        goals.append(_goal(name, bound, judged, decides=False))
    name = f"base, {of}: share of the card's specified bandwidth"
    return [*goals, _goal(name, f"≥ {LEAST_SHARE:.0%}", _bandwidth(base), decides=False)]


def _bandwidth(base: Record) -> Judged:
    share, copied = base.get("specified_share"), base.get("copy_share")
    if share is None and copied is None:
        return UNKNOWN
    beside = f"{copied:.0%} of the measured copy bandwidth" if copied else "copy bandwidth unknown"
    if share is None:
        return None, f"{base['card']} is not in the table; {beside}"
    return share >= LEAST_SHARE, f"{share:.0%}; {beside}"
