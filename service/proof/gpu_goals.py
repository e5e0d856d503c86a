"""What the sections of `make gpu-check` write, and what a GPU must show: goals, judged from records alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from service.modes import MODES
from service.proof.rows import Row, Verdict

# Records: JSON lines, each on disk before the next is measured

PATH_VARIABLE = "GPU_CHECK_ROWS"
"""The environment variable that names the file of a section's records."""

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
    """Those of a file, without a line that a killed process has cut off; none without a file."""
    records: list[Record] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            records.append(msgspec.json.decode(line, type=Record))
        except msgspec.DecodeError:
            continue
    return records


def _of_kind(records: BySection, section: str, kind: str) -> list[Record]:
    return [record for record in records.get(section, []) if record["kind"] == kind]


def _planned(records: BySection, section: str = "ladder") -> Record | None:
    return next(iter(_of_kind(records, section, "plan")), None)


# Goals


class Goal(Row, frozen=True, kw_only=True):
    """A row whose note is what was found. Goals that do not decide the exit code only inform.

    A deciding goal holds only where it passes: what was not measured is no success.
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


def goals_of(records: BySection) -> list[Goal]:
    """All goals of a whole check, from the records of its sections."""
    return [
        *(_parity(records, section) for section in ("ladder", "float32")),
        _tests(records),
        _jobs(records),
        _replays(records),
        _graph_launches(records),
        _other_launches(records),
        *_sessions(records),
        _attached(records),
    ]


GRAPHS = "reduce-overhead"


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


def _replay_profiles(records: BySection) -> dict[int, Record | None]:
    """Of a decode step of the mode that replays, by the batches that are planned; None: not profiled."""
    planned = _planned(records)
    found: dict[int, Record | None] = dict.fromkeys(planned["batches"] if planned else ())
    for job in _of_kind(records, "ladder", "job"):
        for profile in job["profile"] or ():
            if (job["mode"], profile["phase"]) == (GRAPHS, "decode"):
                found[job["batch_size"]] = profile
    return found


def _graph_launches(records: BySection) -> Goal:
    counts = {n: found and found["graph_launches"] for n, found in _replay_profiles(records).items()}
    shown = {n: "unknown" if count is None else f"{count:g}" for n, count in counts.items()}
    text = ", ".join(f"{count} at batch {n}" for n, count in shown.items()) or "not measured"
    known = bool(counts) and None not in counts.values()
    holds = all(count == 1 for count in counts.values()) if known else None
    return _goal(f"{GRAPHS}: graph launches per decode step", "1", holds, text)


def _other_launches(records: BySection) -> Goal:
    name, bound = f"{GRAPHS}: other launches per decode step", "≤ 1"
    profiles = _replay_profiles(records).values()
    counted = [one for one in profiles if one and None not in (one["launches"], one["graph_launches"])]
    if not counted or len(counted) < len(profiles):
        return _goal(name, bound, None, f"measured at {len(counted)} batches")
    most = max(one["launches"] - one["graph_launches"] for one in counted)
    return _goal(name, bound, most <= 1, f"at most {most:g}")


# The section `profiler`: its ways to a step's device time agree

SESSIONS = 4
APART = 0.05


def _sessions(records: BySection) -> Iterator[Goal]:
    """Kernels by window against queued replays, and against ids, which only inform: CUPTI has a defect.

    A replay lasts at least as long as its kernels, and at most as long as their span under the profiler,
    which lengthens the gaps between a graph's nodes: by how much only informs.
    """
    written = {record["session"]: record for record in _of_kind(records, "profiler", "session")}
    windows, spans, by_id = (
        [_of_session(written.get(number, {}).get(field, [])) for number in range(1, SESSIONS + 1)]
        for field in ("busy_seconds_by_window", "span_seconds_by_window", "busy_seconds_by_id")
    )
    yield _alike("kernels by window, sessions over the first", windows[:1], windows, decides=True)
    unprofiled = _of_kind(records, "profiler", "unprofiled")[:1]
    # Where the host could not queue ahead, the device idled in between: that is not what a step takes.
    queued = [None if record["upper_bound"] else record["queued_seconds"] for record in unprofiled]
    yield _at_most("a step's kernels by window over queued replays", windows, queued)
    yield _at_most("queued replays over a step's span by window", queued, spans)
    yield _alike("a step's span by window over queued replays", queued, spans)
    for number, (by_window, own) in enumerate(zip(windows, by_id, strict=True), 1):
        yield _alike(f"kernels by id over those by window, session {number}", [by_window], [own])


def _of_session(values: list[float | None]) -> float | None:
    """The median of a session's steps; None without any, and where one of them had no kernels."""
    known = [value for value in values if value is not None]
    return median(known) if known and len(known) == len(values) else None


def _attached(records: BySection) -> Goal:
    """Whether CUPTI, which stays attached after a first session, slows what comes after (pytorch #146604)."""
    dispatch = [record["dispatch_seconds"] for record in _of_kind(records, "profiler", "unprofiled")]
    return _alike("dispatch after profiler sessions over before", dispatch[:1], dispatch[1:])


def _alike(
    name: str, below: Sequence[float | None], above: Sequence[float | None], decides: bool = False
) -> Goal:
    """Whether every one of `above` over the one of `below` is near 1; shows the farthest."""
    bound, reference = f"within {APART:.0%}", below[0] if below else None
    if not reference or not above or None in above:
        return _goal(name, bound, None, decides=decides)
    ratios = [value / reference for value in above if value is not None]
    farthest = max(ratios, key=lambda ratio: abs(ratio - 1))
    return _goal(name, bound, abs(farthest - 1) <= APART, f"{farthest:.3f}", decides)


def _at_most(name: str, parts: list[float | None], wholes: list[float | None]) -> Goal:
    """Whether none of `parts` is longer than any of `wholes`; shows the longest over the shortest."""
    bound = f"≤ {1 + APART}"
    known = [value for value in (*parts, *wholes) if value]
    if not parts or not wholes or len(known) < len(parts) + len(wholes):
        return _goal(name, bound, None)
    ratio = max(known[: len(parts)]) / min(known[len(parts) :])
    return _goal(name, bound, ratio <= 1 + APART, f"{ratio:.3f}")
