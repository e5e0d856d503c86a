"""The sections' own arithmetic and plan, as far as it needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.proof import gpu_check
from service.proof.gpu_check import Section, limit_seconds, parts
from service.proof.gpu_goals import MOST_SECONDS_COLD, PATH_VARIABLE, Records, read_records
from service.proof.gpu_sections import SECTIONS, session_fields
from tests.step.made_traces import KERNELS, graph_id, replays

PARTS = parts("folder")


def test_the_order_is_that_of_what_they_decide() -> None:
    assert [section.name for section in PARTS[1]] == [
        "device",
        "profiler",
        "ladder",
        "float32",
        "tests",
    ]


@pytest.mark.parametrize("part", PARTS)
def test_the_limits_of_a_parts_sections_fit_its_time(part: int) -> None:
    assert sum(section.seconds for section in PARTS[part]) <= MOST_SECONDS_COLD


def test_a_section_has_its_limit_and_what_earlier_ones_left_of_theirs() -> None:
    sections = [Section(name, 10.0, "", ()) for name in ("a", "b", "c")]
    assert [limit_seconds(sections, place, 30.0 - 10.0 * place) for place in range(3)] == [10.0] * 3
    assert limit_seconds(sections, 1, left_seconds=27.0) == 17.0
    assert limit_seconds(sections, 2, left_seconds=4.0) == 4.0


def test_a_section_that_took_longer_takes_nothing_from_the_limit_of_the_next() -> None:
    sections = [Section(name, 10.0, "", ()) for name in ("a", "b", "c")]
    assert limit_seconds(sections, 1, left_seconds=15.0) == 10.0


def test_every_section_that_measures_has_its_function() -> None:
    sections = [section for part in PARTS.values() for section in part if section.records]
    assert {section.command[2] for section in sections} == SECTIONS.keys()


@pytest.mark.slow
def test_the_later_parts_run_verbs_that_exist() -> None:
    for section in (*PARTS[2], *PARTS[3]):
        if section.records:
            continue
        arguments = [sys.executable, section.command[0], section.command[1], "--help"]
        text = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout
        options = [option for option in section.command if option.startswith("--")]
        assert [option for option in options if option not in text] == []


def test_a_session_counts_kernels_by_both_ways_and_launch_calls() -> None:
    # The second replay's kernels carry the first one's id, as from a process's second session on.
    events = replays(2, kernel_id=lambda step: graph_id(0))
    fields = session_fields(events)
    assert fields["kernels_by_window"] == [KERNELS, KERNELS]
    assert fields["kernels_by_id"] == [2 * KERNELS, None]
    assert fields["busy_seconds_by_window"] == pytest.approx([180e-6, 180e-6])
    assert fields["span_seconds_by_window"] == pytest.approx([224.5e-6, 224.5e-6])
    assert (fields["launches"], fields["graph_launches"]) == (4, 2)


def test_rows_are_on_disk_as_soon_as_they_are_written_and_hold_no_infinity(tmp_path: Path) -> None:
    rows = Records(tmp_path / "rows.jsonl")
    rows.write("one", high=float("inf"), share=float("nan"))
    (row,) = read_records(rows.path)
    assert (row["kind"], row["high"], row["share"]) == ("one", None, None)


def test_without_a_gpu_one_sentence_says_so_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_check.main([]) == 1
    assert capsys.readouterr().err == "gpu-check: torch sees no CUDA device, so nothing can be checked here\n"
    assert not (tmp_path / "out").exists()


def test_a_python_without_the_packages_is_told_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "NEEDED", ("torch", "no_such_package"))
    assert gpu_check.main([]) == 1
    assert "lacks no_such_package: install them or give another one as PYTHON=" in capsys.readouterr().err


def test_an_unknown_section_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert gpu_check.main(["--only", "devise"]) == 2
    assert "no section 'devise': try some of device, profiler" in capsys.readouterr().err


@pytest.mark.slow
def test_the_gpu_tests_write_a_row_each(tmp_path: Path) -> None:
    path = tmp_path / "tests.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "service.proof.gpu_sections", "tests"],
        env={**os.environ, PATH_VARIABLE: str(path), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    collected, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert done.returncode == 0, done.stdout
    assert collected["count"] == len(rows) > 0
    assert {row["outcome"] for row in rows} == {"skipped"}
    assert all(row["name"].startswith("tests/gpu/") for row in rows)
