"""The report's roofline: bytes of a decode step in its kernel time, against the engine's bandwidth."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from loadtests.report.formatting import microseconds, size
from loadtests.report.report_files import make_report
from loadtests.report.results import read_results
from loadtests.report.roofline_section import roofline_section
from loadtests.report.verdict import Findings
from loadtests.run.run_file import SweepRun
from service.statistics.boundedness import decode_bytes
from tests.support.made_results import (
    edit_rows,
    edit_run,
    make_results,
    set_split,
    with_intervals,
    with_machine,
)

SIZES = {"weights": 12_000_000, "cache_per_position": 6_144, "activations_per_row": 70_000}
FLOPS = {"per_row": 6_000_000, "per_position": 4_608}
RATE = 10e9
FLOPS_PER_SECOND = 50e9


def recorded(folder: Path, device: str = "cpu") -> Path:
    """A sweep whose engine recorded what a step moves, and how fast memory is."""

    def change(run: SweepRun) -> None:
        kind = "copy" if device == "cuda" else "read"
        bandwidth = {"kind": kind, "bytes_per_second": RATE, "buffer_bytes": 12_000_000}
        run.engine |= {"memory_bandwidth": bandwidth, "step_bytes": SIZES}
        run.engine |= {
            "matrix_rate": {"flops_per_second": FLOPS_PER_SECOND, "size": 512},
            "step_flops": FLOPS,
        }

    edit_run(folder, change)
    return folder


def findings(folder: Path) -> Findings:
    return Findings(read_results(folder))


def test_each_mode_and_batch_has_its_bytes_over_its_kernels(tmp_path: Path) -> None:
    found = findings(recorded(with_intervals(make_results(tmp_path))))
    section = roofline_section(found)
    summaries = [summary for verdict in found.main for summary in verdict.modes]
    assert len(section.lines) == len(summaries)
    for line, summary in zip(section.lines, summaries, strict=True):
        rows, steps = summary.cell.batch_size, summary.decode.steps
        assert steps is not None
        assert summary.prompt_tokens is not None
        assert summary.decode.kernel_seconds is not None
        kernel = summary.decode.kernel_seconds / steps
        moved = decode_bytes(SIZES, rows, summary.prompt_tokens / rows + (steps + 1) / 2)
        assert (line.batch, line.moved, line.kernel) == (rows, size(moved), microseconds(kernel))
        share = 100 * moved / kernel / RATE
        assert float(line.share.split()[0].replace(",", "")) == pytest.approx(share, rel=0.006)
        low, high = (float(end.replace(",", "")) for end in line.span.split("–"))
        assert low < share < high
        flops = rows * (6_000_000 + 4_608 * (summary.prompt_tokens / rows + (steps + 1) / 2))
        arithmetic = 100 * flops / kernel / FLOPS_PER_SECOND
        assert float(line.arithmetic.split()[0].replace(",", "")) == pytest.approx(arithmetic, rel=0.006)
        assert line.nearer == ("memory" if share > arithmetic else "arithmetic")


def test_a_step_of_many_rows_is_nearer_to_the_roof_of_arithmetic(tmp_path: Path) -> None:
    section = roofline_section(findings(recorded(with_intervals(make_results(tmp_path)))))
    by_batch = {line.batch: line.nearer for line in section.lines}
    assert by_batch[min(by_batch)] == "memory"
    assert by_batch[max(by_batch)] == "arithmetic"
    assert "50.0 GFLOP/s" in section.sentence


def test_a_run_that_did_not_measure_the_rate_of_products_names_no_nearer_roof(tmp_path: Path) -> None:
    folder = recorded(with_intervals(make_results(tmp_path)))
    edit_run(folder, lambda run: run.engine.pop("matrix_rate"))
    assert {line.nearer for line in roofline_section(findings(folder)).lines} == {"unknown"}


def test_page_and_text_say_that_it_is_an_estimate_on_a_cpu(tmp_path: Path) -> None:
    folder = recorded(with_intervals(make_results(tmp_path)))
    make_report(folder)
    line = roofline_section(findings(folder)).lines[0]
    for file in ("report.md", "report.html"):
        text = html.unescape((folder / file).read_text())
        assert "Roofline of decode" in text
        assert "On a CPU kernel time is an estimate by samples" in text
        assert "10.0 GB/s, read by the engine's threads over a buffer of 11.4 MiB" in text
        assert "where they fit in caches, so does it" in text
        assert line.share in text


@pytest.mark.parametrize(("canary", "roof"), [(RATE * 1.25, RATE * 1.25), (RATE / 2, RATE)])
def test_the_roof_is_no_lower_than_what_the_canary_read_in_a_round(
    tmp_path: Path, canary: float, roof: float
) -> None:
    folder = recorded(with_intervals(make_results(tmp_path)))
    before = roofline_section(findings(folder))
    section = roofline_section(findings(with_machine(folder, [RATE / 3, canary], [0.0, 0.0])))
    shares = [float(line.share.split()[0].replace(",", "")) for line in (before.lines[0], section.lines[0])]
    assert shares[0] / shares[1] == pytest.approx(roof / RATE, rel=0.01)
    assert ("the canary" in section.sentence) == (roof > RATE)


def test_what_the_canary_read_is_no_roof_of_a_gpu(tmp_path: Path) -> None:
    folder = make_results(tmp_path, device="cuda")
    edit_rows(folder, lambda row: [set_split(row, phase, 0.5, 0.0) for phase in ("prefill", "decode")])
    section = roofline_section(findings(with_machine(recorded(folder, "cuda"), [RATE * 9], [0.0])))
    assert "10.0 GB/s, copied, bytes read and written," in section.sentence


def test_a_run_without_the_bandwidth_says_so(tmp_path: Path) -> None:
    section = roofline_section(findings(make_results(tmp_path)))
    assert section.lines == ()
    assert section.sentence.startswith("Unknown: the service of this run did not record")


def test_without_kernel_times_it_is_unknown(tmp_path: Path) -> None:
    section = roofline_section(findings(recorded(make_results(tmp_path, device="cuda"), "cuda")))
    assert section.lines == ()
    assert section.sentence == "Unknown: kernel time is not measured here."
