"""Writes a timeline: a trace of both modes for Perfetto, and a page that opens offline."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.anatomy.errors import StudyError
from service.anatomy.timeline.page import page
from service.anatomy.timeline.tracks import TimelineFinding, Track

TRACE_FILE = "timeline.trace.json.gz"
PAGE_FILE = "timeline.html"
DEVICE_ROWS = 1000
"""Added to a stream's number, so that no stream has the row of a host thread."""


def write(finding: TimelineFinding, folder: Path, with_page: bool) -> list[str]:
    """Write the trace, and the page where it is wanted, into `folder`, which is created; returns their names.

    Raises StudyError where that fails, or where plotly, which draws the page, is not installed.
    """
    files = {TRACE_FILE: gzip.compress(json.dumps(trace(finding)).encode())}
    if with_page:
        files[PAGE_FILE] = page(finding).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise StudyError("invalid_request", f"cannot write to {folder}: {error.strerror}", "out") from error
    return list(files)


def trace(finding: TimelineFinding) -> dict[str, Any]:
    """All tracks in the Chrome trace format (JSON object form): one process each, from 0 µs."""
    events = [
        event for number, track in enumerate(finding.tracks, start=1) for event in _process(track, number)
    ]
    about = f"one {finding.phase} step, batch {finding.batch_bucket}, {finding.device}"
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"about": about}}


def _process(track: Track, number: int) -> Iterator[dict[str, Any]]:
    yield _named("process_name", number, 0, f"{track.mode} ({track.effective})")
    yield {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": number}}
    for lane, row in sorted({(block.lane, block.row) for block in track.blocks}, reverse=True):
        name = "host" if lane == "host" else f"device, stream {row}"
        yield _named("thread_name", number, _row(lane, row), name)
    for index, block in enumerate(track.blocks):
        row = _row(block.lane, block.row)
        yield {
            "ph": "X",
            "name": block.name,
            "cat": block.kind,
            "pid": number,
            "tid": row,
            "ts": block.begin_us,
            "dur": block.duration_us,
            "args": {"depth": block.depth},
        }
        if block.launched_by is not None:
            call = track.blocks[block.launched_by]
            flow = {"cat": "launch", "name": "launch", "id": f"{number}.{index}", "pid": number}
            yield {**flow, "ph": "s", "tid": _row(call.lane, call.row), "ts": call.begin_us}
            yield {**flow, "ph": "f", "bp": "e", "tid": row, "ts": block.begin_us}


def _row(lane: str, row: int) -> int:
    return row if lane == "host" else DEVICE_ROWS + row


def _named(what: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"name": name}}
