"""How near decode comes to the bandwidth of memory: the bytes that a step must move, in its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loadtests.report.formatting import microseconds, significant, size
from loadtests.report.plotting import colour
from loadtests.report.summaries import Summary
from loadtests.report.verdict import Findings
from loadtests.report.wording import short_name
from loadtests.run.run_file import SweepRun
from service.statistics.intervals import Interval
from service.statistics.roofline import attended_positions, decode_bytes, roofline


@dataclass(frozen=True, slots=True)
class RooflineLine:
    """One mode at one batch size, per decode step; `share` is of the bandwidth, `span` its interval."""

    batch: int
    mode: str
    colour: str
    moved: str
    kernel: str
    attained: str
    share: str
    span: str


@dataclass(frozen=True, slots=True)
class RooflineSection:
    """A sentence on the bandwidth and one line per mode and batch; without lines `sentence` says why."""

    sentence: str
    lines: tuple[RooflineLine, ...]


def roofline_section(findings: Findings) -> RooflineSection:
    """The section of the main groups of `findings`."""
    engine = findings.results.run.engine
    bandwidth, sizes = engine.get("memory_bandwidth"), engine.get("step_bytes")
    if not bandwidth or not sizes:
        reason = "Unknown: the service of this run did not record its memory's bandwidth; sweep again."
        return RooflineSection(reason, ())
    summaries = [summary for verdict in findings.main for summary in verdict.modes]
    rate = _roof(bandwidth, findings.results.run)
    lines = tuple(line for one in summaries if (line := _line(one, sizes, rate)) is not None)
    if not lines:
        return RooflineSection("Unknown: kernel time is not measured here.", ())
    return RooflineSection(_sentence(bandwidth, rate, findings.estimated), lines)


def _roof(bandwidth: dict[str, Any], run: SweepRun) -> float:
    """Bytes per second: the engine's, or where memory is read, a round's canary that read it faster.

    The engine reads once, after warm-up; a roof below what was reached elsewhere in the run would be none.
    """
    engine = float(bandwidth["bytes_per_second"])
    if bandwidth["kind"] != "read":
        return engine
    return max([engine, *(one.canary_bytes_per_second or 0.0 for one in run.machine_by_round)])


def _line(summary: Summary, sizes: dict[str, Any], rate: float) -> RooflineLine | None:
    """None where the cell's kernel time or prompt is not known."""
    steps, kernel = summary.decode.steps, _kernel(summary)
    if not steps or kernel is None or summary.prompt_tokens is None:
        return None
    rows = summary.cell.batch_size
    moved = decode_bytes(sizes, rows, attended_positions(summary.prompt_tokens / rows, steps))
    per_step = Interval(kernel.value / steps, kernel.low / steps, kernel.high / steps, kernel.samples)
    found = roofline(moved, per_step, rate)
    if found is None:
        return None
    return RooflineLine(
        batch=rows,
        mode=short_name(summary),
        colour=colour(summary.cell.mode),
        moved=size(moved),
        kernel=microseconds(per_step.value),
        attained=f"{significant(found.attained.value / 1e9)} GB/s",
        share=f"{significant(100 * found.share.value)} %",
        span=f"{significant(100 * found.share.low)}–{significant(100 * found.share.high)}",
    )


def _kernel(summary: Summary) -> Interval | None:
    """Kernel seconds of decode per request; an estimated dispatch leaves it an interval."""
    decode = summary.decode
    if decode.kernel_seconds is None:
        return None
    low = high = decode.kernel_seconds
    ends = (decode.wall_seconds, decode.dispatch_low_seconds, decode.dispatch_high_seconds)
    if summary.estimated and None not in ends:
        wall, least, most = (end or 0.0 for end in ends)
        low, high = max(0.0, wall - most), max(0.0, wall - least)
    return Interval(decode.kernel_seconds, low, high, summary.requests)


def _sentence(bandwidth: dict[str, Any], rate: float, estimated: bool) -> str:
    return " ".join(_sentences(bandwidth, rate, estimated))


def _sentences(bandwidth: dict[str, Any], rate: float, estimated: bool) -> Iterator[str]:
    how = "copied, bytes read and written," if bandwidth["kind"] == "copy" else "read by the engine's threads"
    if rate > bandwidth["bytes_per_second"]:
        how = f"read by the canary in its fastest round ({_gigabytes(bandwidth['bytes_per_second'])} {how})"
    yield (
        "The bytes that a decode step must move (weights once, keys and values in use, what enters and "
        f"leaves matrix products) in its kernel time, against {_gigabytes(rate)}, {how} over a buffer of "
        f"{size(bandwidth['buffer_bytes'])}."
    )
    yield "That is as large as the weights, within bounds: where they fit in caches, so does it."
    if estimated:
        yield ("On a CPU kernel time is an estimate by samples, whose interval the shares have.")
    yield "A low share says that something else bounds the kernels: arithmetic, or their number."


def _gigabytes(rate: float) -> str:
    return f"{significant(rate / 1e9)} GB/s"
