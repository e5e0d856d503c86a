"""The report's sections: fusion × launch, roofline, the load generator, and where the wall time went."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.plan.presets import make_plan
from loadtests.report.findings import Findings
from loadtests.report.formatting import microseconds, size
from loadtests.report.page import Section, Text
from loadtests.report.report_files import headline, make_report
from loadtests.report.results import Results, read_results
from loadtests.report.roofline import roofline_section
from loadtests.report.sections import sections
from loadtests.report.surroundings import environment, reproduce, wall_time
from loadtests.run.run_file import Part, SweepRun, read_run, write_run
from service.statistics.boundedness import decode_bytes
from tests.support.fake_service import STEP_SECONDS
from tests.support.made_results import (
    CLEAR,
    edit_rows,
    edit_run,
    make_results,
    set_split,
    with_intervals,
    with_machine,
)


def findings(folder: Path) -> Findings:
    return Findings(read_results(folder))


def number(text: str) -> float:
    return float(text.split()[0].rstrip("×").replace(",", ""))


def ends(cell: Text) -> list[float]:
    return [number(end) for end in cell.span.split("–")]


# ---------------------------------------------------------------- fusion × launch

RELATIVE = CLEAR | {"inference_mode": 0.8, "cuda-graph": 0.4, "compiled": 0.5, "reduce-overhead": 0.4}
MODES = list(RELATIVE)


def designed(folder: Path, modes: list[str] = MODES, device: str = "cuda", replayed: bool = True) -> Path:
    plan = make_plan("quick", 1, modes=modes, batch_sizes=[1, 16])
    make_results(folder, RELATIVE, plan=plan, scatter=0.002, device=device)
    if replayed:
        edit_run(folder, lambda run: [one.update(effective=one["mode"], reason=None) for one in run.modes])
    return folder


def section_of(folder: Path, title: str) -> Section | None:
    return next((one for one in sections(findings(folder), [], None) if one.title == title), None)


@pytest.fixture
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEP_SECONDS, "cuda-graph", (0.0004, 0.0005))


@pytest.mark.usefixtures("_graphs")
def test_each_factor_of_fusion_and_launch_is_priced_without_and_with_the_other(tmp_path: Path) -> None:
    section = section_of(designed(tmp_path), "Fusion × launch")
    assert section is not None
    assert [table.title for table in section.tables] == ["Batch 1", "Batch 16"]
    for table in section.tables:
        plain, fused, fusing = table.rows
        ratios = [plain[3], fused[3], *fusing[1:]]
        assert [number(one.text) for one in ratios] == pytest.approx([2, 1.25, 1.6, 1, 2], rel=0.02)
        assert all(ends(one)[0] <= number(one.text) <= ends(one)[1] for one in ratios)
    latencies = [number(cell.text) for row in section.tables[0].rows[:2] for cell in row[1:3]]
    assert latencies == pytest.approx([16, 8, 10, 8], rel=0.02)


@pytest.mark.usefixtures("_graphs")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "cpu"}, "without CUDA no graph can be replayed"),
        ({"modes": [one for one in MODES if one != "cuda-graph"]}, "left out cuda-graph; sweep with --modes"),
        ({"replayed": False}, "reduce-overhead ran as compiled-cpp"),
    ],
)
def test_where_fusion_and_launch_cannot_be_told_apart_the_report_says_why(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    make_report(designed(tmp_path, **change))
    for file in ("report.md", "report.html"):
        text = (tmp_path / file).read_text()
        assert "Fusion × launch is not shown" in text
        assert reason in text


# ---------------------------------------------------------------- roofline

SIZES = {"weights": 12_000_000, "cache_per_position": 6_144, "activations_per_row": 70_000}
FLOPS = {"per_row": 6_000_000, "per_position": 4_608}
RATE = 10e9
FLOPS_PER_SECOND = 50e9


def recorded(folder: Path, device: str = "cpu") -> Path:
    """A sweep whose engine recorded what a step moves, and how fast memory is."""
    kind = "copy" if device == "cuda" else "read"
    bandwidth = {"kind": kind, "bytes_per_second": RATE, "buffer_bytes": 12_000_000}
    matrices = {"flops_per_second": FLOPS_PER_SECOND, "size": 512}
    known = {"memory_bandwidth": bandwidth, "step_bytes": SIZES, "matrix_rate": matrices, "step_flops": FLOPS}
    edit_run(folder, lambda run: run.engine.update(known))
    return folder


def rows(section: Section) -> list[dict[str, Text]]:
    return [dict(zip(table.heads, row, strict=True)) for table in section.tables for row in table.rows]


def test_each_mode_and_batch_has_its_bytes_over_its_kernels(tmp_path: Path) -> None:
    found = findings(recorded(with_intervals(make_results(tmp_path))))
    section = roofline_section(found)
    summaries = [summary for verdict in found.main for summary in verdict.modes]
    nearer = []
    for row, summary in zip(rows(section), summaries, strict=True):
        batch, decode = summary.cell.batch_size, summary.decode
        positions = (summary.prompt_tokens or 0) / batch + ((decode.steps or 0) + 1) / 2
        kernel = (decode.kernel_seconds or 0) / (decode.steps or 1)
        moved = decode_bytes(SIZES, batch, positions)
        told = [row[name].text for name in ("batch", "bytes per step", "kernel per step")]
        assert told == [str(batch), size(moved), microseconds(kernel)]
        share, bandwidth = 100 * moved / kernel / RATE, row["of bandwidth (interval)"]
        assert number(bandwidth.text) == pytest.approx(share, rel=0.006)
        assert ends(bandwidth)[0] < share < ends(bandwidth)[1]
        arithmetic = 100 * batch * (6_000_000 + 4_608 * positions) / kernel / FLOPS_PER_SECOND
        assert number(row["of arithmetic (interval)"].text) == pytest.approx(arithmetic, rel=0.006)
        assert row["nearer roof"].text == ("memory" if share > arithmetic else "arithmetic")
        nearer.append(row["nearer roof"].text)
    assert (nearer[0], nearer[-1]) == ("memory", "arithmetic")
    make_report(tmp_path)
    for file in ("report.md", "report.html"):
        text = html.unescape((tmp_path / file).read_text())
        assert "On a CPU kernel time is an estimate by samples" in text
        assert "10.0 GB/s, read by the engine's threads, over a buffer of 11.4 MiB" in text
        assert "50.0 GFLOP/s" in text


@pytest.mark.parametrize(("canary", "roof"), [(RATE * 1.25, RATE * 1.25), (RATE / 2, RATE)])
def test_the_roof_is_no_lower_than_what_the_canary_read_in_a_round(
    tmp_path: Path, canary: float, roof: float
) -> None:
    folder = recorded(with_intervals(make_results(tmp_path)))
    before = roofline_section(findings(folder))
    after = roofline_section(findings(with_machine(folder, [RATE / 3, canary], [0.0, 0.0])))
    shares = [number(rows(one)[0]["of bandwidth (interval)"].text) for one in (before, after)]
    assert shares[0] / shares[1] == pytest.approx(roof / RATE, rel=0.01)
    assert ("the canary" in after.note) == (roof > RATE)


def test_a_roof_that_was_not_measured_is_unknown(tmp_path: Path) -> None:
    folder = make_results(tmp_path)
    section = roofline_section(findings(folder))
    assert (section.tables, section.note[:8]) == ([], "Unknown:")
    edit_run(recorded(with_intervals(folder)), lambda run: run.engine.pop("matrix_rate"))
    assert {row["nearer roof"].text for row in rows(roofline_section(findings(folder)))} == {"unknown"}


def test_a_gpus_roofline_is_unknown_without_kernel_times_and_what_the_canary_read_is_no_roof(
    tmp_path: Path,
) -> None:
    folder = make_results(tmp_path, device="cuda")
    section = roofline_section(findings(recorded(folder, "cuda")))
    assert section.note == "Unknown: kernel time is not measured here."
    edit_rows(folder, lambda row: [set_split(row, phase, 0.5, 0.0) for phase in ("prefill", "decode")])
    section = roofline_section(findings(with_machine(recorded(folder, "cuda"), [RATE * 9], [0.0])))
    assert "10.0 GB/s, copied (bytes read and written)," in section.note


# ---------------------------------------------------------------- the load generator

CLOSED = Cell(mode="eager", batch_size=1, requests=2)
OPEN = Cell(mode="eager", batch_size=1, load=0.5, requests=100)


def plan(*cells: Cell) -> Plan:
    return Plan(preset="own", seed=1, rounds=1, cells=cells)


def lines(folder: Path) -> dict[str, str]:
    return dict(environment(read_results(folder)))


def test_the_schedule_delay_is_that_of_the_measured_open_loop_requests(tmp_path: Path) -> None:
    """The n-th of them left n ms late, and every request of warm-up 9 s."""

    def late(row: dict[str, Any]) -> None:
        row["start"] += 9.0 if row["stage"] == "warmup" else 1e-3 * row["index"] * (row["load"] is not None)

    edit_rows(make_results(tmp_path, plan=plan(CLOSED, OPEN)), late)
    told = lines(tmp_path)["schedule delay"]
    assert told == "p50 49.5 ms, p99 98.0 ms, max 99.0 ms, of 100 open-loop requests"


@pytest.mark.parametrize(
    ("workers", "share", "processes", "cpu"),
    [
        (1, 0.05, "one process on core 0", "5% of one core"),
        (None, None, "one process on core 0", "not known"),
        (3, 0.05, "3 load processes and their master, all on core 0", "5% of one core, of its busiest"),
    ],
)
def test_the_load_generators_processes_and_cpu_are_always_shown(
    tmp_path: Path, workers: int | None, share: float | None, processes: str, cpu: str
) -> None:
    def change(run: SweepRun) -> None:
        run.settings = {"workers": workers} if workers else {}
        run.client.cpu_share = share

    edit_run(make_results(tmp_path, plan=plan(CLOSED)), change)
    found = lines(tmp_path)
    assert found["load generator"] == processes
    assert found["CPU of the load generator"].startswith(cpu)
    assert found["schedule delay"].startswith("not measured: ")
    assert ("--workers 3" in reproduce(read_run(tmp_path))[-1]) == (workers == 3)


# ---------------------------------------------------------------- wall time

PLAN = Plan(preset="own", seed=1, rounds=8, cells=(CLOSED, msgspec.structs.replace(OPEN, requests=3)))
BEGIN = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""


def timed(folder: Path, instants: list[dict[str, Any]], parts: list[Part]) -> Results:
    """A sweep whose rows are only these: each with a start and an end in seconds from BEGIN."""
    run = read_run(make_results(folder, plan=PLAN))
    path = folder / "requests.jsonl"
    row = json.loads(path.read_text().splitlines()[-1])
    written = []
    for instant in instants:
        start, end = instant.pop("at")
        due = BEGIN + instant.pop("due", start)
        fields = {"start": BEGIN + start, "intended_start": due, "latency_seconds": end - start, **instant}
        written.append(json.dumps({"part": 1, "stage": "measure", "round": 1, **row, **fields}))
    path.write_text("\n".join(written) + "\n")
    run.started, run.parts = "2026-01-01T00:00:00Z", parts
    write_run(folder, run)
    return read_results(folder)


def closed(start: float, end: float, **fields: Any) -> dict[str, Any]:
    return {"cell": CLOSED.name, "load": None, "at": (start, end), **fields}


def test_overlapping_requests_count_once_and_what_lies_between_is_named(tmp_path: Path) -> None:
    opened = {"cell": PLAN.cells[1].name, "load": 0.5}
    instants = [
        *(closed(10, 12, stage="warmup"), closed(14, 24), closed(16, 26), closed(17, 18), closed(28, 34)),
        *({**opened, "at": (35, 38), "due": 34.5}, {**opened, "at": (40, 42)}),
    ]
    at = [f"2026-01-01T00:00:{second}Z" for second in ("01", "04", "54")]
    found = wall_time(timed(tmp_path, instants, [Part(number=1, started=at[0], ready=at[1], ended=at[2])]))
    assert (found.total, found.before) == (50.0, 4.0)
    assert (found.measured, found.idle, found.between) == pytest.approx((12 + 6 + 3 + 2, 2.5, 2 + 0.5))
    assert (found.warm_up, found.measured_share) == pytest.approx((4.0, 0.46))
    assert found.text == (
        "46 % of 50 s with the service up; warm-up 8 %, waiting for arrivals 5 %, "
        "between requests 5 %, the rest 36 %. Until the service was ready: 4 s"
    )


def test_a_request_whose_steps_are_sampled_is_no_measured_one(tmp_path: Path) -> None:
    instants = [
        *(closed(10, 14, stage="sample"), closed(14, 24), closed(25, 30, stage="sample"), closed(30, 40))
    ]
    found = wall_time(timed(tmp_path, instants, [Part(number=1, started="2026-01-01T00:00:01Z")]))
    assert (found.measured, found.sampled, found.between) == pytest.approx((20.0, 9.0, 1.0))
    assert found.text.startswith("67 % of 30 s from the first request to the last; sampled requests 30 %")


def test_the_gap_between_two_parts_is_no_time_of_the_sweep(tmp_path: Path) -> None:
    instants = [
        *(closed(10, 12, stage="warmup"), closed(12, 20)),
        *(closed(1000, 1002, stage="warmup", part=2), closed(1003, 1010, part=2)),
    ]
    killed = Part(number=1, started="2026-01-01T00:00:00Z", ready="2026-01-01T00:00:10Z")
    later = {"started": "2026-01-01T00:16:35Z", "ready": "2026-01-01T00:16:39Z"}
    second = Part(number=2, ended="2026-01-01T00:16:59Z", **later)
    found = wall_time(timed(tmp_path, instants, [killed, second]))
    assert found.total == pytest.approx((20 - 10) + (1019 - 999))
    assert (found.before, found.measured, found.warm_up) == pytest.approx((10 + 4, 8 + 7, 2 + 3))


def test_an_old_run_counts_from_its_first_request_and_says_so(tmp_path: Path) -> None:
    results = read_results(make_results(tmp_path))
    found = wall_time(results)
    assert found.before is None
    assert "from the first request to the last" in found.text
    assert headline(Findings(results))["measured_share"] == found.measured_share
    assert ("measured requests", found.text) in environment(results)


def test_a_service_that_does_not_say_its_machine_is_unknown(tmp_path: Path) -> None:
    edit_run(make_results(tmp_path), lambda run: run.environment.clear())
    assert lines(tmp_path)["machine"] == "unknown: the service is of a version that does not say"
    make_report(tmp_path)
    assert "unknown processor" in (tmp_path / "report.md").read_text()
    assert "None" not in (tmp_path / "report.md").read_text()
