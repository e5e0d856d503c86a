"""The GPU's power by cell: of samples that belong to one visit alone, else absent with a reason."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from pathlib import Path

import pytest

from loadtests.plan.presets import make_plan
from loadtests.report.gpu_power import gpu_power
from loadtests.report.results import Results, read_results
from loadtests.run.machine import TIME_FORMAT, clocks_file, clocks_summary, power_samples
from loadtests.run.rows import RowsError
from tests.support.made_results import CLEAR, edit_run, make_results

SLOW = {mode: 100 * value for mode, value in CLEAR.items()}
"""Two seconds a request, so that a visit is longer than what power is averaged over."""


def sampled(folder: Path, relative: dict[str, float], watts: dict[str, float], gpus: int = 1) -> Results:
    """A GPU's sweep with a sample every quarter of a second, of the watts of the cell's mode."""
    plan = make_plan("quick", 1, ["eager", "inference_mode"], [1])
    make_results(folder, relative, plan=plan, device="cuda")
    rows = read_results(folder).measured.sort("start").collect()
    starts, modes = rows["start"].to_list(), rows["mode"].to_list()
    lines = []
    for step in range(1, int(4 * (starts[-1] - starts[0]))):
        seconds = starts[0] + step / 4
        mode = modes[bisect_right(starts, seconds) - 1]
        when = datetime.fromtimestamp(seconds, UTC).strftime(TIME_FORMAT)
        lines += [f"GPU-{gpu}, 1980, 2619, {watts[mode]}, 41, 0x0, {when}" for gpu in range(gpus)]
    clocks_file(folder, 1).write_text("\n".join(lines) + "\n")
    return read_results(folder)


def test_each_cell_has_the_power_of_its_own_visits(tmp_path: Path) -> None:
    found = gpu_power(sampled(tmp_path, SLOW, {"eager": 300.0, "inference_mode": 500.0}))
    by_mode = {cell.partition(" ")[0]: power for cell, power in found.by_cell.items()}
    assert by_mode["eager"].value == pytest.approx(300)
    assert by_mode["inference_mode"].value == pytest.approx(500)
    assert by_mode["eager"].samples == 8


def test_visits_that_are_shorter_than_what_power_is_averaged_over_have_none(tmp_path: Path) -> None:
    found = gpu_power(sampled(tmp_path, CLEAR, {"eager": 300.0, "inference_mode": 500.0}))
    assert found.by_cell == {}
    assert "too short" in found.absent


def test_samples_of_another_time_are_no_power_of_this_sweep(tmp_path: Path) -> None:
    results = sampled(tmp_path, SLOW, {"eager": 300.0, "inference_mode": 500.0})
    file = clocks_file(tmp_path, 1)
    file.write_text(file.read_text().replace(", 2023/", ", 2022/"))
    assert power_samples(file)
    assert gpu_power(results).by_cell == {}


def test_of_several_gpus_it_is_not_known_which_served(tmp_path: Path) -> None:
    found = gpu_power(sampled(tmp_path, SLOW, {"eager": 300.0, "inference_mode": 500.0}, gpus=2))
    assert found.by_cell == {}
    assert "several GPUs" in found.absent


def test_a_cpu_has_no_power_and_a_gpu_without_samples_has_none(tmp_path: Path) -> None:
    results = read_results(make_results(tmp_path))
    assert gpu_power(results).absent == "not measured on a CPU"
    edit_run(tmp_path, lambda run: run.engine.update(device="cuda"))
    assert gpu_power(read_results(tmp_path)).absent == "no power was sampled"


WHOLE = "GPU-a, 1980, 2619, 310.50, 41, 0x0, 2026/11/22 10:00:00.500\n"


def test_a_last_line_that_was_cut_anywhere_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "clocks.csv"
    for left in range(1, len(WHOLE)):
        file.write_text(WHOLE + WHOLE[:left])
        assert [len(samples) for samples in power_samples(file).values()] == [1]
        assert [gpu["samples"] for gpu in clocks_summary(file)] == [1]


def test_a_whole_sample_whose_time_is_none_is_an_error_that_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "clocks.csv"
    file.write_text(WHOLE + WHOLE.replace("10:00:00.500", "10:00") + WHOLE)
    with pytest.raises(RowsError, match=r"clocks.csv, line 2: .*'2026/11/22 10:00' is no time"):
        power_samples(file)


def test_samples_of_before_they_had_a_time_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "clocks.csv"
    file.write_text("GPU-a, 1980, 2619, 310.50, 41, 0x0\nGPU-a, 1, 1, 200, 1, 0x0, 2026/11/22 10:00:00.500\n")
    assert power_samples(file) == {
        "GPU-a": [(datetime(2026, 11, 22, 10, 0, 0, 500000, UTC).timestamp(), 200)]
    }
