"""The table of a run: on the terminal, and as JSON and Markdown in a folder that can be committed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec

from service.front.machine import machine
from tests.chaos.victim import Fault, Happened

FORMAT_VERSION = 1
JSON_FILE, MARKDOWN_FILE = "chaos.json", "chaos.md"

Verdict = Literal["as it must", "NOT SO", "not possible here"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One fault and what came of it; `seconds` None: nothing was timed, because it did not come to it."""

    fault: str
    must: str
    happened: str
    seconds: float | None
    verdict: Verdict
    numbers: dict[str, float | None] = {}


class Chaos(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run. `complete`: of all faults there are; `environment` is the machine's description."""

    format_version: int = FORMAT_VERSION
    created: str
    complete: bool
    soak_seconds: float
    environment: dict[str, Any]
    rows: list[Row]


def row(fault: Fault, happened: Happened) -> Row:
    """What a fault led to."""
    return Row(
        fault=fault.name,
        must=fault.must,
        happened=happened.words,
        seconds=happened.seconds,
        verdict="as it must" if happened.as_must else "NOT SO",
        numbers={
            name: None if value is None or math.isnan(value) else value
            for name, value in happened.numbers.items()
        },
    )


def row_without(fault: Fault, why: str, verdict: Verdict) -> Row:
    """A fault that broke off, or that this machine does not allow, and `why`."""
    return Row(fault=fault.name, must=fault.must, happened=why, seconds=None, verdict=verdict)


def new_chaos(rows: Sequence[Row], soak_seconds: float, complete: bool) -> Chaos:
    """The document of `rows`, with the machine as it is now."""
    return Chaos(
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        complete=complete,
        soak_seconds=soak_seconds,
        environment={**machine(), "torch": version("torch")},
        rows=list(rows),
    )


def new_folder(commit: str | None) -> Path:
    """`results/chaos-<UTC>-<commit>`, as other results are named."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("results") / f"chaos-{stamp}-{(commit or 'nocommit')[:8]}"


def write(chaos: Chaos, folder: Path) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    document = msgspec.json.format(msgspec.json.encode(chaos), indent=1) + b"\n"
    (folder / JSON_FILE).write_bytes(document)
    (folder / MARKDOWN_FILE).write_text(markdown(chaos))


def markdown(chaos: Chaos) -> str:
    """The table, below what it was measured on."""
    where, failed = chaos.environment, sum(one.verdict == "NOT SO" for one in chaos.rows)
    load = ", ".join(f"{value:.1f}" for value in where.get("load_average") or [])
    changed = ", with uncommitted changes" if where.get("dirty") else ""
    head = [
        "# What a service survives",
        f"{len(chaos.rows)} fault{'s' * (len(chaos.rows) != 1)}"
        f"{'' if chaos.complete else ' (a choice of all)'}, of which "
        f"{failed or 'none'} ended otherwise than it must.",
        f"{where.get('cpu')}, {where.get('cores')} cores, {where.get('distribution')}, "
        f"Python {where.get('python')}, torch {where.get('torch')}; load average at the end: {load}; "
        f"commit {where.get('commit')}{changed}; {chaos.created}. Made by `make chaos`.",
    ]
    lines = ["| fault | what must happen | what happened | seconds | |", "|---|---|---|---|---|"]
    lines += [
        f"| {' | '.join(map(_cell, (one.fault, one.must, one.happened, shown(one.seconds), one.verdict)))} |"
        for one in chaos.rows
    ]
    return "\n\n".join([*head, "\n".join(lines)]) + "\n"


def shown(seconds: float | None) -> str:
    """A time as tables have it."""
    return "–" if seconds is None else f"{seconds:.1f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
