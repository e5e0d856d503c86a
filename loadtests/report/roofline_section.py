"""How near decode comes to the rates of the device: what a step must move and compute, in its kernel time."""

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
from service.statistics.boundedness import Roofline, attended_positions, decode_bytes, decode_flops, roofline
from service.statistics.intervals import Interval


@dataclass(frozen=True, slots=True)
class RooflineLine:
    """One mode at one batch size, per decode step.

    `share` is of the bandwidth, `arithmetic` of the rate of matrix products, each with its interval; the
    latter is "unknown" in runs that did not measure it. `nearer` is the roof that the step is nearer to.
    """

    batch: int
    mode: str
    colour: str
    moved: str
    kernel: str
    attained: str
    share: str
    span: str
    arithmetic: str
    arithmetic_span: str
    nearer: str


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
    lines = tuple(line for one in summaries if (line := _line(one, engine, rate)) is not None)
    if not lines:
        return RooflineSection("Unknown: kernel time is not measured here.", ())
    return RooflineSection(" ".join(_sentences(engine, rate, findings.estimated)), lines)


def _roof(bandwidth: dict[str, Any], run: SweepRun) -> float:
    """Bytes per second: the engine's, or where memory is read, a round's canary that read it faster.

    The engine reads once, after warm-up; a roof below what was reached elsewhere in the run would be none.
    """
    engine = float(bandwidth["bytes_per_second"])
    if bandwidth["kind"] != "read":
        return engine
    return max([engine, *(one.canary_bytes_per_second or 0.0 for one in run.machine_by_round)])


def _line(summary: Summary, engine: dict[str, Any], rate: float) -> RooflineLine | None:
    """None where the cell's kernel time or prompt is not known."""
    steps, kernel = summary.decode.steps, _kernel(summary)
    if not steps or kernel is None or summary.prompt_tokens is None:
        return None
    rows = summary.cell.batch_size
    positions = attended_positions(summary.prompt_tokens / rows, steps)
    moved = decode_bytes(engine["step_bytes"], rows, positions)
    per_step = Interval(kernel.value / steps, kernel.low / steps, kernel.high / steps, kernel.samples)
    found = roofline(moved, per_step, rate)
    if found is None:
        return None
    computed = None
    if engine.get("matrix_rate") and engine.get("step_flops"):
        flops = decode_flops(engine["step_flops"], rows, positions)
        computed = roofline(flops, per_step, engine["matrix_rate"]["flops_per_second"])
    return RooflineLine(
        batch=rows,
        mode=short_name(summary),
        colour=colour(summary.cell.mode),
        moved=size(moved),
        kernel=microseconds(per_step.value),
        attained=f"{significant(found.attained.value / 1e9)} GB/s",
        share=f"{significant(100 * found.share.value)} %",
        span=_span(found),
        arithmetic=f"{significant(100 * computed.share.value)} %" if computed else "unknown",
        arithmetic_span=_span(computed) if computed else "",
        nearer=_nearer(found, computed),
    )


def _span(found: Roofline) -> str:
    return f"{significant(100 * found.share.low)}–{significant(100 * found.share.high)}"


def _nearer(memory: Roofline, arithmetic: Roofline | None) -> str:
    """Both shares have the same kernel time, so which is larger does not depend on its interval."""
    if arithmetic is None:
        return "unknown"
    return "memory" if memory.share.value > arithmetic.share.value else "arithmetic"


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


def _sentences(engine: dict[str, Any], rate: float, estimated: bool) -> Iterator[str]:
    bandwidth, matrices = engine["memory_bandwidth"], engine.get("matrix_rate")
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
    if matrices:
        yield (
            "Its arithmetic (matrix products and attention) stands against "
            f"{significant(matrices['flops_per_second'] / 1e9)} GFLOP/s, the rate of a product of two "
            f"matrices of {matrices['size']} × {matrices['size']}."
        )
    yield "Two low shares say that something else bounds the kernels: how many there are, or how small."


def _gigabytes(rate: float) -> str:
    return f"{significant(rate / 1e9)} GB/s"
