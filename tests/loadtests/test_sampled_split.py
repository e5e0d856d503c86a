"""A visit's time splits by the samples of one request before it, which is in no statistic of latency."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from loadtests.report.machine_selftest import misclassed
from loadtests.report.proof import proof
from loadtests.report.results import read_results
from loadtests.report.summaries import Summary
from loadtests.report.verdict import Findings
from loadtests.report.witnesses import witnesses
from loadtests.run.validation import validate_folder
from service.statistics.intervals import Interval
from service.statistics.sampled_share import MISCLASSED, PROVED, counting_error
from tests.support.made_evidence import Row, edit_rows, with_floors, with_intervals, with_samples
from tests.support.made_results import CLEAR, make_results

LOW, HIGH = (0.6 - MISCLASSED) / (1 - MISCLASSED), 0.6 / (1 - MISCLASSED)
"""The index that 60 samples of 100 in kernels allow, were there no error of counting."""
COUNTING = counting_error(480, 320)
"""Half a width, of eight rounds of 100 samples each, which do not scatter."""


def baseline(folder: Path) -> Summary:
    return Findings(read_results(folder)).main[0].baseline


def test_the_index_is_that_of_the_samples_and_not_of_the_floors(tmp_path: Path) -> None:
    decode = baseline(with_samples(with_intervals(make_results(tmp_path), 0.4))).decode
    assert decode.index == pytest.approx(0.6)
    assert decode.samples == 8 * 100


def test_without_scatter_the_interval_is_what_may_be_taken_for_the_other_part(tmp_path: Path) -> None:
    decode = baseline(with_samples(with_floors(with_intervals(make_results(tmp_path)), moved=3.0))).decode
    assert decode.interval is not None
    ends = LOW - COUNTING, HIGH + COUNTING
    assert (decode.interval.low, decode.interval.high) == pytest.approx(ends)
    assert decode.wall_seconds is not None
    assert decode.dispatch_low_seconds == pytest.approx(decode.wall_seconds * (1 - ends[1]))
    assert decode.dispatch_high_seconds == pytest.approx(decode.wall_seconds * (1 - ends[0]))


def test_samples_without_a_name_might_be_of_kernels(tmp_path: Path) -> None:
    decode = baseline(with_samples(make_results(tmp_path), lambda row: (60, 40, 10))).decode
    assert decode.index == pytest.approx(0.6)
    assert decode.interval is not None
    assert decode.interval.high == pytest.approx(0.7 / (1 - MISCLASSED) + COUNTING)
    assert decode.interval.low == pytest.approx(LOW - COUNTING)


def test_the_scatter_of_the_rounds_is_in_the_interval(tmp_path: Path) -> None:
    def scattered(row: Row) -> tuple[int, int, int]:
        kernel = round(Random(f"{row['round']}/{row['cell']}").gauss(600, 80))
        return kernel, 1000 - kernel, 0

    decode = baseline(with_samples(make_results(tmp_path), scattered)).decode
    assert decode.interval is not None
    assert decode.interval.high - decode.interval.low > HIGH - LOW + 0.06


def test_each_round_is_split_by_its_own_samples(tmp_path: Path) -> None:
    folder = with_samples(make_results(tmp_path), lambda row: (10 * row["round"], 100 - 10 * row["round"], 0))
    rows = read_results(folder).measured.collect()
    share = rows["decode_kernel_seconds"] / rows["decode_wall_seconds"]
    assert share.to_list() == pytest.approx((rows["round"] / 10).to_list())
    total = rows["prefill_kernel_seconds"] + rows["decode_kernel_seconds"]
    assert rows["kernel_seconds"].to_list() == pytest.approx(total.to_list())


def test_dispatch_and_kernel_still_make_the_time_of_the_steps(tmp_path: Path) -> None:
    before = read_results(make_results(tmp_path)).measured.collect()
    after = read_results(with_samples(tmp_path)).measured.collect()
    for phase in ("prefill", "decode"):
        parts = after[f"{phase}_dispatch_seconds"] + after[f"{phase}_kernel_seconds"]
        assert parts.to_list() == pytest.approx(before[f"{phase}_wall_seconds"].to_list())


def test_a_visit_whose_sample_failed_is_split_by_those_of_the_cells_others(tmp_path: Path) -> None:
    folder = with_samples(make_results(tmp_path))
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["stage"] == "sample" and row["round"] == 3:
            row |= {"status": 500, "error": "broke", "prefill": None, "decode": None}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    decode = baseline(folder).decode
    assert decode.index == pytest.approx(0.6)
    assert decode.samples == 7 * 100


def test_requests_that_were_merged_keep_the_split_of_the_engine(tmp_path: Path) -> None:
    folder = with_samples(with_intervals(make_results(tmp_path)))
    edit_rows(folder, lambda row: row.update(sources=row["sources"] | {"steps": "shared"}))
    decode = baseline(folder).decode
    assert decode.index != pytest.approx(0.6, abs=0.05)
    assert decode.samples is None


def test_a_sampled_request_is_in_no_statistic_of_latency(tmp_path: Path) -> None:
    before = baseline(make_results(tmp_path))
    after = baseline(with_samples(tmp_path))
    assert (after.latency, after.requests, after.tokens_per_second) == (
        before.latency, before.requests, before.tokens_per_second,
    )  # fmt: skip


def test_a_folder_without_samples_is_read_as_it_was(tmp_path: Path) -> None:
    rows = read_results(with_intervals(make_results(tmp_path))).measured.collect()
    written = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    measured = [row for row in written if row["stage"] == "measure"]
    assert rows["dispatch_seconds"].to_list() == [row["dispatch_seconds"] for row in measured]
    assert rows["decode_dispatch_share"].null_count() == rows.height
    assert rows.select(pl.col("decode_samples").null_count()).item() == rows.height


def injected(name: str, low: float | None, high: float | None) -> dict[str, Any]:
    return {"name": f"{name}, eager", "low": low, "high": high}


PASSED = [
    injected("a kernel 8 times longer: kernel", 0.96, 1.04),
    injected("a kernel 8 times longer: dispatch", -0.01, 0.05),
    injected("more host work per step: dispatch", 0.95, 1.08),
    injected("more host work per step: kernel", -0.02, 0.04),
    injected("sampled a fifth as often: dispatch", 0.94, 1.02),
    injected("sampled a fifth as often: kernel", 0.98, 1.03),
]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (None, PROVED),
        (injected("more host work per step: kernel", 0.1, 0.17), 0.17),
        (injected("a kernel 8 times longer: dispatch", -0.3, -0.12), 0.3),
        (injected("a kernel 8 times longer: kernel", 0.6, 0.7), 0.4),
        (injected("more host work per step: dispatch", 1.1, 1.25), 0.25),
        (injected("more host work per step: kernel", None, None), 1.0),
        (injected("more host work per step: kernel", -4.0, 4.0), 1.0),
        (injected("sampled a fifth as often: dispatch", 0.82, 0.95), 0.18),
        (injected("sampled a fifth as often: kernel", 1.05, 1.13), 0.13),
        (injected("floor of eager", 9.0, 9.0), PROVED),
    ],
    ids=str,
)
def test_a_selftest_widens_the_interval_by_what_it_does_not_exclude(
    row: dict[str, Any] | None, found: float
) -> None:
    assert misclassed({"rows": [*PASSED, *([row] if row else [])]}) == pytest.approx(found)


def test_no_selftest_leaves_more_open_than_its_bound_and_one_without_such_rows_anything() -> None:
    assert misclassed(None) == MISCLASSED > PROVED
    assert misclassed({"rows": []}) == 1.0


def beside_a_selftest(folder: Path, rows: list[dict[str, Any]], **other: object) -> Interval:
    """The interval of eager's index, where a complete selftest with these rows lies beside the sweep."""
    sweep, selftest = folder / "sweep", folder / "selftest"
    sweep.mkdir()
    selftest.mkdir()
    here = {"commit": "0123456789ab", "cpu": "a CPU", "device": "a CPU", "complete": True, "threads": 1}
    here |= {"dtype": "float32", "modes": list(CLEAR), "outcome": "failed", "detail": "", "rows": rows}
    (selftest / "selftest.json").write_text(json.dumps(here | other))
    interval = baseline(with_samples(make_results(sweep))).decode.interval
    assert interval is not None
    return interval


def test_a_selftest_beside_the_sweep_that_excludes_nothing_leaves_the_bound_open(tmp_path: Path) -> None:
    interval = beside_a_selftest(tmp_path, [])
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_one_that_passed_makes_the_interval_narrower_than_none_does(tmp_path: Path) -> None:
    interval = beside_a_selftest(tmp_path, PASSED)
    assert interval.low == pytest.approx((0.6 - PROVED) / (1 - PROVED) - COUNTING)
    assert interval.low > LOW - COUNTING


@pytest.mark.parametrize("other", [{"linears": "transposed"}, {"threads": 2}, {"dtype": "bfloat16"}], ids=str)
def test_one_that_ran_other_kernels_does_not(tmp_path: Path, other: dict[str, object]) -> None:
    interval = beside_a_selftest(tmp_path, PASSED, **other)
    assert interval.low == pytest.approx(LOW - COUNTING)


def test_one_that_ran_other_kernels_and_leaves_more_open_counts_for_that(tmp_path: Path) -> None:
    rows = [*PASSED, injected("more host work per step: kernel", 0.1, 0.35)]
    interval = beside_a_selftest(tmp_path, rows, linears="transposed")
    assert interval.low == pytest.approx((0.6 - 0.35) / (1 - 0.35) - COUNTING)


def sized(folder: Path, size: Callable[[Row], int]) -> Path:
    """Prefill of this padded length, whose time grows with it but for the dispatch."""

    def change(row: Row) -> None:
        tokens = size(row)
        wall = 1e-3 + tokens * 1e-4  # of dispatch, and of kernels
        row["padded_prompt_tokens"] = tokens
        row["prefill"] |= {
            "steps": 1,
            "wall_seconds": wall,
            "dispatch_seconds": 1e-3,
            "kernel_seconds": wall - 1e-3,
        }

    edit_rows(folder, change)
    return folder


def test_a_prompt_of_another_padded_length_has_the_same_dispatch_and_another_share(tmp_path: Path) -> None:
    folder = sized(make_results(tmp_path), lambda row: (16, 32, 64)[row["sequence"] % 3])

    def honest(row: Row) -> tuple[int, int, int]:
        kernel = round(1000 * (1 - 1e-3 / row["prefill"]["wall_seconds"]))
        return kernel, 1000 - kernel, 0

    rows = read_results(with_samples(folder, honest)).measured.collect()
    assert rows["padded_prompt_tokens"].n_unique() == 3
    assert rows["prefill_dispatch_seconds"].to_list() == pytest.approx([1e-3] * rows.height, rel=2e-3)


def test_a_round_that_has_its_split_from_others_says_nothing_of_the_scatter(tmp_path: Path) -> None:
    def scattered(row: Row) -> tuple[int, int, int]:
        kernel = round(Random(f"{row['round']}/{row['cell']}").gauss(600, 80))
        return kernel, 1000 - kernel, 0

    folder = with_samples(make_results(tmp_path), scattered)
    every = baseline(folder).decode.interval
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [row for row in rows if row["stage"] != "sample" or row["round"] <= 2]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    few = baseline(folder).decode.interval
    assert every is not None
    assert few is not None
    assert few.high - few.low > every.high - every.low
    kept = [row for row in rows if row["stage"] != "sample" or row["round"] == 1]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    one = baseline(folder).decode.interval
    assert one is not None
    assert (one.low, one.high) == (0.0, 1.0)


def test_totals_are_the_sums_of_the_phases_where_one_of_them_alone_was_sampled(tmp_path: Path) -> None:
    folder = with_samples(make_results(tmp_path))
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row["stage"] == "sample":
            row["prefill"] |= {"kernel_samples": 0, "host_samples": 0, "unnamed_samples": 0}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_results(folder).measured.collect()
    for part in ("dispatch", "kernel"):
        sums = found[f"prefill_{part}_seconds"] + found[f"decode_{part}_seconds"]
        assert found[f"{part}_seconds"].to_list() == pytest.approx(sums.to_list())
    assert gate(folder, "clipped estimates").passed is not None


def gate(folder: Path, name: str) -> Any:
    run = read_results(folder).run
    return next(gate for gate in validate_folder(folder, run) if gate.name == name)


def test_gates_about_floors_do_not_apply_where_every_cell_was_sampled(tmp_path: Path) -> None:
    folder = with_floors(with_intervals(make_results(tmp_path)), moved=3.0)
    edit_rows(folder, lambda row: row["decode"].update(clipped=True))
    assert gate(folder, "floors before = after").passed is False
    assert gate(folder, "clipped estimates").passed is False
    with_samples(folder)
    assert gate(folder, "floors before = after").passed is None
    assert gate(folder, "clipped estimates").passed is None


def test_one_cell_without_samples_leaves_the_floors_gate_in_force(tmp_path: Path) -> None:
    folder = with_samples(with_floors(with_intervals(make_results(tmp_path)), moved=3.0))
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [row for row in rows if row["stage"] != "sample" or not row["cell"].startswith("compiled b=4")]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert gate(folder, "floors before = after").passed is False


def told_beside(folder: Path, samples: tuple[int, int, int]) -> str:
    """What a report says of the twin where every visit was sampled so, and stacks at rest agreed with it."""
    made = with_floors(with_intervals(make_results(folder)), off=0.0)
    return proof(Findings(read_results(with_samples(made, lambda row: samples)))).sentences[-1]


def test_the_report_says_what_the_split_rests_on_and_where_the_twin_lies(tmp_path: Path) -> None:
    told = told_beside(tmp_path, (20, 80, 0))
    assert told.startswith("Dispatch and kernel rest on 24,000 samples")
    assert "every interval reaches" not in told
    twins = [witness.twin.value for witness in witnesses(Findings(read_results(tmp_path)))]
    assert f"{100 * (max(twins) - 0.2):.0f} points more for kernels" in told


def test_a_twin_that_reads_more_dispatch_than_samples_do_is_told_as_a_contradiction(tmp_path: Path) -> None:
    told = told_beside(tmp_path, (99, 1, 0))
    assert "one of the two is wrong" in told
