"""The machine during a sweep: steal time, the canary, the rounds that they mark, and a GPU's clocks."""

from __future__ import annotations

import os
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
from tests.support.made_results import make_results

LINES = """\
GPU-a, 1980, 2619, 310.50, 41, 0x0000000000000000, 2026/11/24 10:00:00.000
GPU-a, 1200, 2619, 690.00, 71, 0x0000000000000024, 2026/11/24 10:00:01.000
GPU-b, [N/A], 2619, [N/A], 30, [N/A], 2026/11/24 10:00:02.000
GPU-a, 210, 405, 70.10, 30, 0x0000000000000001, 2026/11/24 10:00:03.000
GPU-c, 210, 405, 69.90, 30, 0x0000000000000001, 2026/11/24 10:00:04.000
not a line
GPU-a, 1755, 2619, 500.00, 60, 0x0000000000000004, 2026/11/24 10:00:06.000
"""


def fake_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_without_nvidia_smi_the_reason_is_said_and_the_section_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command, why = clocks_query()
    assert command == []
    assert "nvidia-smi does not run here" in why
    with watched(command, tmp_path / "clocks.csv"):
        pass
    assert not (tmp_path / "clocks.csv").exists()
    fake_nvidia_smi(tmp_path, monkeypatch, 'echo "driver mismatch"; exit 9')
    assert clocks_query() == ([], "nvidia-smi refuses the query: driver mismatch")


def test_samples_are_taken_for_as_long_as_the_section_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    line = LINES.splitlines()[0]
    loops = f'case "$*" in *--loop-ms*) echo "{line}"; echo x > "{told}"; read never < "{told}";; esac'
    fake_nvidia_smi(tmp_path, monkeypatch, loops)
    command, _ = clocks_query()
    with watched(command, tmp_path / "clocks.csv"):
        assert told.read_text() == "x\n"
    assert clocks_summary(tmp_path / "clocks.csv")[0]["samples"] == 1


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
    assert (
        "clocks lowered by software power cap, software thermal slowdown; 3 samples, 1 more of an idle GPU"
        in shown[0]
    )
    assert "clocks never lowered" in shown[1]
    assert shown[2] == "no numbers; never at work; 0 samples, 1 more of an idle GPU left out"


@pytest.mark.parametrize(("url", "local"), [("http://127.0.0.1:8000", True), ("http://gpu-7:8000", False)])
def test_only_a_service_on_this_machine_has_this_machine_s_gpus(url: str, local: bool) -> None:
    assert Target(url).is_local is local
