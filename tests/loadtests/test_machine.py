"""The machine during a sweep: steal time, the canary, the rounds that they mark, and a GPU's clocks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from loadtests.report.results import read_results
from loadtests.report.surroundings import environment
from loadtests.run.machine import (
    clocks_query,
    clocks_summary,
    watched,
)
from loadtests.run.run_file import Part, read_run, write_run
from loadtests.run.target import Target
from service.front.machine import gpus
from service.nvml import MIG_NOTE
from tests.support import fake_nvml
from tests.support.made_results import make_results
from tests.support.serving import until

LINES = """\
GPU-a,1980,2619,310.5,41,0x0,2026/11/24 10:00:00.000000,90,1000.0,0
GPU-a,1200,2619,690.0,71,0x24,2026/11/24 10:00:01.000000,100,1500.0,0
GPU-b,,2619,,30,,2026/11/24 10:00:02.000000,,,1
GPU-a,210,405,70.1,30,0x1,2026/11/24 10:00:03.000000,0,1700.0,0
GPU-c,210,405,69.9,30,0x1,2026/11/24 10:00:04.000000,0,1.0,0
not a line
GPU-a,1755,2619,500.0,60,0x4,2026/11/24 10:00:06.000000,98,3000.0,0
GPU-a,1755,26"""


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For processes that are started meanwhile: the package, of a machine with one GPU."""
    shutil.copy(fake_nvml.__file__, tmp_path / "pynvml.py")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path.cwd()}")


def test_without_nvml_the_reason_is_said_and_the_section_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ModuleNotFoundError")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path.cwd()}")
    command, why = clocks_query()
    assert (command, why) == ([], "the package nvidia-ml-py is not installed")
    with watched(command, tmp_path / "clocks.csv"):
        pass
    assert not (tmp_path / "clocks.csv").exists()
    assert gpus() == []


@pytest.mark.usefixtures("gpu")
def test_samples_are_taken_for_as_long_as_the_section_runs(tmp_path: Path) -> None:
    command, why = clocks_query()
    assert why is None
    file = tmp_path / "clocks.csv"
    with watched(command, file):
        until(lambda: file.read_text().count("\n") > 2, "samples")
    (found,) = clocks_summary(file)
    assert found["samples"] > 2
    assert found["power.draw"]["median"] == 310.5
    assert found["joules"] == 250.0 * (found["samples"] - 1)
    assert gpus()[0]["name"] == "NVIDIA H100 80GB HBM3"


def test_a_sweep_s_samples_stand_in_its_report_with_what_lowered_the_clocks(tmp_path: Path) -> None:
    (tmp_path / "clocks.csv").write_text(LINES)
    run = read_run(make_results(tmp_path))
    run.parts = [Part(number=1, started="")]
    run.parts[0].gpus = clocks_summary(tmp_path / "clocks.csv")
    write_run(tmp_path, run)
    results = read_results(tmp_path)
    shown = [text for label, text in environment(results.run) if label == "GPU while measured"]
    assert len(shown) == 3
    assert "1755 MHz SM (1200 to 1980)" in shown[0]
    assert "98 % of the time at work (90 to 100), 2000 J in 6 s;" in shown[0]
    assert (
        "clocks lowered by software power cap, software thermal slowdown; 3 samples, 1 more of an idle GPU"
        in shown[0]
    )
    assert "clocks never lowered" in shown[1]
    assert shown[1].endswith(f"; {MIG_NOTE}")
    assert shown[2] == "no numbers; never at work; 0 samples, 1 more of an idle GPU left out"


@pytest.mark.parametrize(("url", "local"), [("http://127.0.0.1:8000", True), ("http://gpu-7:8000", False)])
def test_only_a_service_on_this_machine_has_this_machine_s_gpus(url: str, local: bool) -> None:
    assert Target(url).is_local is local
