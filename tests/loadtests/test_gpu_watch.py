"""Clocks and throttling while a GPU is measured: what nvidia-smi says, and why nothing without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadtests.report.surroundings import environment
from loadtests.run.machine import clocks_file, clocks_query, clocks_summary, watched
from loadtests.run.resumption import recover
from loadtests.run.run_file import Part, read_run
from loadtests.run.schedule import Finished
from loadtests.run.target import Target
from tests.support.made_results import make_results

LINES = """\
GPU-a, 1980, 2619, 310.50, 41, 0x0000000000000000
GPU-a, 1200, 2619, 690.00, 71, 0x0000000000000024
GPU-b, [N/A], 2619, [N/A], 30, [N/A]
GPU-a, 210, 405, 70.10, 30, 0x0000000000000001
GPU-c, 210, 405, 69.90, 30, 0x0000000000000001
not a line
GPU-a, 1755, 2619, 500.00, 60, 0x0000000000000004
"""


def fake_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_clocks_power_and_every_reason_are_summed_up_per_gpu(tmp_path: Path) -> None:
    (tmp_path / "clocks.csv").write_text(LINES)
    first, second, _ = clocks_summary(tmp_path / "clocks.csv")
    assert (first["gpu"], first["samples"], first["idle"]) == ("GPU-a", 4, 1)
    assert first["clocks.sm"] == {"least": 1200, "median": 1755, "most": 1980}
    assert first["power.draw"]["most"] == 690
    assert first["reasons"] == ["software power cap", "software thermal slowdown"]
    assert "clocks.sm" not in second
    assert second["reasons"] == []


def test_a_gpu_that_was_idle_all_the_time_has_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "clocks.csv").write_text(LINES)
    assert clocks_summary(tmp_path / "clocks.csv")[2] == {
        "gpu": "GPU-c",
        "samples": 1,
        "idle": 1,
        "reasons": [],
    }


def test_a_part_that_was_killed_has_the_clocks_of_its_file(tmp_path: Path) -> None:
    run = read_run(make_results(tmp_path))
    run.ended, run.parts = None, [Part(number=1, started="", warmup_passes=2)]
    clocks_file(tmp_path, 1).write_text(LINES)
    recover(tmp_path, run, Finished())
    assert [gpu["gpu"] for gpu in run.parts[0].gpus] == ["GPU-a", "GPU-b", "GPU-c"]


def test_without_samples_there_is_no_summary(tmp_path: Path) -> None:
    assert clocks_summary(tmp_path / "none.csv") == []


def test_without_nvidia_smi_the_reason_is_said_and_the_section_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command, why = clocks_query()
    assert command == []
    assert why is not None
    assert "nvidia-smi does not run here" in why
    with watched(command, tmp_path / "clocks.csv"):
        pass
    assert not (tmp_path / "clocks.csv").exists()


def test_an_older_driver_is_asked_by_the_older_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = 'case "$1" in *clocks_event_reasons*) echo "not a valid field"; exit 2;; esac; exit 0'
    fake_nvidia_smi(tmp_path, monkeypatch, refuse)
    command, why = clocks_query()
    assert why is None
    assert "clocks_throttle_reasons.active" in command[1]


def test_a_driver_that_refuses_both_names_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    shown = [text for label, text in environment(run) if label == "GPU while measured"]
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
