"""How near decode comes to the rates of the device: what a step must move and compute, in its kernel time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loadtests.report.findings import Findings
from loadtests.report.formatting import colour, microseconds, significant, size, span
from loadtests.report.page import Section, Table, Text
from loadtests.report.summaries import Summary
from loadtests.run.run_file import SweepRun
from service.statistics.boundedness import Roofline, attended_positions, decode_bytes, decode_flops, roofline
from service.statistics.intervals import Interval

HEADS = (
    "mode", "batch", "bytes per step", "kernel per step", "attained", "of bandwidth (interval)",
    "of arithmetic (interval)", "nearer roof",
)  # fmt: skip

_ENDS = ("wall_seconds", "dispatch_low_seconds", "dispatch_high_seconds")


def roofline_section(findings: Findings) -> Section:
    """One row per mode and main batch size, per decode step; without rows the note says why."""
    engine, run = findings.results.run.engine, findings.results.run
    rows, note = list[list[Text]](), "Unknown: kernel time is not measured here."
    if not engine.get("memory_bandwidth") or not engine.get("step_bytes"):
        note = "Unknown: the service of this run did not record its memory's bandwidth; sweep again."
    else:
        rate = _roof(engine["memory_bandwidth"], run)
        modes = [one for verdict in findings.main for one in verdict.modes]
        rows = [row for one in modes if (row := _row(one, engine, rate)) is not None]
    if rows:
        note = " ".join(_sentences(engine, rate, findings.estimated))
    return Section("Roofline of decode", note, [Table("", HEADS, rows)] if rows else [])


def _roof(bandwidth: dict[str, Any], run: SweepRun) -> float:
    """Bytes per second: the engine's, or where memory is read, a round's canary that read it faster.

    The engine reads once, after warm-up; a roof below what was reached elsewhere in the run would be none.
    """
    engine = float(bandwidth["bytes_per_second"])
    if bandwidth["kind"] != "read":
        return engine
    return max([engine, *(one.canary_bytes_per_second or 0.0 for one in run.machine_by_round)])


def _row(summary: Summary, engine: dict[str, Any], rate: float) -> list[Text] | None:
    """None where the cell's kernel time or prompt is not known."""
    steps, kernel = summary.decode.steps, _kernel(summary)
    if not steps or kernel is None or summary.prompt_tokens is None:
        return None
    batch = summary.cell.batch_size
    positions = attended_positions(summary.prompt_tokens / batch, steps)
    moved = decode_bytes(engine["step_bytes"], batch, positions)
    per_step = Interval(kernel.value / steps, kernel.low / steps, kernel.high / steps, kernel.samples)
    found, computed = roofline(moved, per_step, rate), None
    if found is None:
        return None
    if engine.get("matrix_rate") and engine.get("step_flops"):
        flops = decode_flops(engine["step_flops"], batch, positions)
        computed = roofline(flops, per_step, engine["matrix_rate"]["flops_per_second"])
    # Both shares have the same kernel time, so which is larger does not depend on its interval.
    nearer = computed and ("memory" if found.share.value > computed.share.value else "arithmetic")
    return [
        Text(summary.cell.mode, colour=colour(summary.cell.mode)),
        Text(str(batch)),
        Text(size(moved)),
        Text(microseconds(per_step.value)),
        Text(_gigabytes(found.attained.value)),
        _share(found),
        _share(computed) if computed else Text("unknown"),
        Text(nearer or "unknown"),
    ]


def _share(found: Roofline) -> Text:
    return Text(f"{significant(100 * found.share.value)} %", span(found.share, 100))


def _kernel(summary: Summary) -> Interval | None:
    """Kernel seconds of decode per request; an estimated dispatch leaves it an interval."""
    kernel = summary.decode.kernel_seconds
    if kernel is None:
        return None
    low = high = kernel
    wall, least, most = (getattr(summary.decode, name) for name in _ENDS)
    if summary.estimated and None not in (wall, least, most):
        low, high = wall - most, wall - least
    return Interval(kernel, max(0.0, low), max(0.0, high), summary.requests)


def _sentences(engine: dict[str, Any], rate: float, estimated: bool) -> Iterator[str]:
    bandwidth, matrices = engine["memory_bandwidth"], engine.get("matrix_rate")
    how = "copied (bytes read and written)" if bandwidth["kind"] == "copy" else "read by the engine's threads"
    if rate > bandwidth["bytes_per_second"]:
        how = f"read by the canary in its fastest round ({_gigabytes(bandwidth['bytes_per_second'])} {how})"
    yield (
        "The bytes that a decode step must move (weights once, keys and values in use, what enters and "
        f"leaves matrix products) in its kernel time, against {_gigabytes(rate)}, {how}, over a buffer of "
        f"{size(bandwidth['buffer_bytes'])}, about as large as the weights."
    )
    if matrices:
        yield (
            "Its arithmetic (matrix products and attention) against "
            f"{significant(matrices['flops_per_second'] / 1e9)} GFLOP/s, the rate of a product of two "
            f"matrices of {matrices['size']} × {matrices['size']}."
        )
    if estimated:
        yield "On a CPU kernel time is an estimate by samples, whose interval the shares have."
    yield "Two low shares: something else bounds the kernels, as how many there are, or how small."


def _gigabytes(rate: float) -> str:
    return f"{significant(rate / 1e9)} GB/s"
