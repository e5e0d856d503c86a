"""The sections of `make gpu-check`, and what becomes of each; a section that crashes or hangs ends alone."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from service.proof import gpu_check
from service.proof.gpu_goals import Records, read_records
from service.proof.gpu_sections import FUNCTIONS


def test_the_sections_have_their_functions_and_fit_the_time_of_all() -> None:
    assert {section.command[2] for section in gpu_check.SECTIONS} == FUNCTIONS.keys()
    assert sum(section.seconds for section in gpu_check.SECTIONS) <= gpu_check.MOST_SECONDS


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


def test_a_python_without_the_packages_is_told_which() -> None:
    command = [sys.executable, "-E", "-S", "-m", "service.proof.gpu_check"]  # -S: without site-packages
    done = subprocess.run(command, cwd=gpu_check.ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    told = f"gpu-check: {sys.executable} lacks torch: install it or give another one as PYTHON=\n"
    assert done.stderr == told


def test_an_unknown_section_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--only", "devise"]) == 2
    assert "no section 'devise': try some of device, profiler" in capsys.readouterr().err


# A section that crashes or hangs ends alone


WRITE = "from service.proof.gpu_goals import own_records; rows = own_records(); rows.write('one', number=1); "
FINE = WRITE + "rows.write('two', number=2)"
KILLED = WRITE + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
HANG = WRITE + "import signal; signal.pause()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WRITE + "\nwhile 1: signal.pause()"
)
FAILS = FINE + "; raise ValueError('the third row [x] is wrong')"
CUT_OFF = FINE + "; open(rows.path, 'ab').write(b'{\"kind\": \"thr')"
LIMIT = 12.0


def section(name: str, code: str) -> gpu_check.Section:
    return gpu_check.Section(name, LIMIT, f"what {name} does", ("-c", code))


def run(folder: Path, code: str, limit: float = 60.0, grace: float = 5.0) -> gpu_check.Ended:
    return gpu_check.run_section(section("one", code), folder, dict(os.environ), limit, grace)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "how", "detail", "rows"),
    [
        (KILLED, "killed", "by SIGKILL", 1),
        (FAILS, "failed", "exit code 1: ValueError: the third row [x] is wrong", 2),
        (CUT_OFF, "done", "", 2),
        ("pass", "failed", "ended well, but wrote no row", 0),
    ],
)
def test_what_was_written_stays_and_the_ending_is_said(
    tmp_path: Path, code: str, how: str, detail: str, rows: int
) -> None:
    ended = run(tmp_path, code)
    assert (ended.how, ended.detail, ended.rows) == (how, detail, rows)
    assert [row["number"] for row in read_records(tmp_path / "one.jsonl")] == [1, 2][:rows]


@contextmanager
def living(folder: Path) -> Iterator[tuple[str, int]]:
    """A pipe's path, for a process to hold open, and its reading end: at its end once nobody holds it."""
    path = folder / "alive"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    yield str(path), descriptor
    os.close(descriptor)


HOLDS = "import signal, sys; held = open(sys.argv[1], 'wb', 0); held.write(b'x'); signal.pause()"


@pytest.mark.slow
def test_a_section_that_hangs_is_ended_at_its_limit_with_what_it_started(tmp_path: Path) -> None:
    with living(tmp_path) as (path, end):
        child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {HOLDS!r}, {path!r}]); "
        ended = run(tmp_path, child + STUBBORN, LIMIT, grace=0.2)
        assert (ended.how, ended.rows) == ("timed out", 1)
        assert ended.detail == f"still running after {LIMIT:.0f} s"
        # Blocks for ever where the process still holds the pipe.
        assert os.read(end, 16) == b"x"
        assert os.read(end, 16) == b""


@pytest.mark.slow
def test_a_runner_that_is_told_to_end_ends_its_section(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, gpu_check.end)
    try:
        with living(tmp_path) as (path, end):
            tell = "import os; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
            code = f"import signal; held = open({path!r}, 'wb', 0); held.write(b'x'); {tell}"
            with pytest.raises(SystemExit) as raised:
                run(tmp_path, code)
            assert raised.value.code == 128 + signal.SIGTERM
            assert os.read(end, 16) == b"x"
            assert os.read(end, 16) == b""
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_the_rest_runs_whatever_becomes_of_a_section_and_only_success_of_all_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = [section(name, code) for name, code in (("first", HANG), ("second", FAILS), ("third", FINE))]
    monkeypatch.setattr(gpu_check, "MOST_SECONDS", 3 * LIMIT)
    found = gpu_check.run_sections(sections, tmp_path, tmp_path / "cache")
    ends = [("first", "timed out", 1), ("second", "failed", 2), ("third", "done", 2)]
    assert [(one.name, one.how, one.rows) for one in found] == ends
    out = io.StringIO()
    assert gpu_check.conclude(found, tmp_path, judged=False, console=Console(file=out, width=150)) == 1
    for word in ("timed out", "failed", "the third row [x] is wrong", "done"):
        assert word in out.getvalue()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [one["how"] for one in summary["sections"]] == ["timed out", "failed", "done"]
    assert summary["passed"] is False
    assert {"commit", "dirty"} <= summary.keys()
    assert gpu_check.conclude(found[2:], tmp_path, judged=False, console=Console(file=out, width=150)) == 0
