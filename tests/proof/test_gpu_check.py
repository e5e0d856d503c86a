"""The plan of the sections, and what becomes of each; a section that crashes or hangs ends alone."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from service.proof import gpu_check
from service.proof.gpu_goals import MOST_SECONDS, Records, read_records

PARTS = gpu_check.parts("folder")


@pytest.mark.parametrize("part", PARTS)
def test_the_limits_of_a_parts_sections_fit_its_time(part: int) -> None:
    beside = gpu_check.groups(PARTS[part])
    assert sum(max(section.seconds for section in group) for group in beside) <= MOST_SECONDS


@pytest.mark.slow
def test_the_later_parts_run_verbs_that_exist() -> None:
    for section in (section for part in PARTS.values() for section in part):
        if section.records:
            continue
        arguments = [sys.executable, section.command[0], section.command[1], "--help"]
        text = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout
        options = [option for option in section.command if option.startswith("--")]
        assert [option for option in options if option not in text] == []


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


def test_an_unknown_section_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert gpu_check.main(["--only", "devise"]) == 2
    assert "no section 'devise': try some of device, profiler" in capsys.readouterr().err


# A section that crashes, hangs or prints garbage ends alone


WRITE = "from service.proof.gpu_goals import own_records; rows = own_records(); rows.write('one', number=1); "
FINE = WRITE + "rows.write('two', number=2)"
CRASH = WRITE + "import os; os._exit(7)"
KILLED = WRITE + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
HANG = WRITE + "import signal; signal.pause()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WRITE + "\nwhile 1: signal.pause()"
)
FAILS = FINE + "; raise ValueError('the third row [x] is wrong')"
GARBAGE = (
    "import os; print('noise on the output'); "
    "open(os.environ['GPU_CHECK_ROWS'], 'ab').write(b'not json\\n{\"no\": \"kind\"}\\n\\xff\\n[1]\\n'); "
    + FINE
)
SILENT = "pass"
LIMIT = 12.0


def section(name: str, code: str) -> gpu_check.Section:
    return gpu_check.Section(name, LIMIT, f"what {name} does", ("-c", code))


def run(folder: Path, name: str, code: str, limit: float = 60.0, grace: float = 5.0) -> gpu_check.Ended:
    (ended,) = gpu_check.run_group([section(name, code)], folder, dict(os.environ), [limit], grace)
    return ended


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "how", "detail", "rows"),
    [
        (FINE, "done", "", 2),
        (CRASH, "failed", "exit code 7", 1),
        (KILLED, "killed", "by SIGKILL", 1),
        (FAILS, "failed", "exit code 1: ValueError: the third row [x] is wrong", 2),
        (GARBAGE, "done", "", 2),
        (SILENT, "failed", "ended well, but wrote no row", 0),
    ],
)
def test_what_was_written_stays_and_the_ending_is_said(
    tmp_path: Path, code: str, how: str, detail: str, rows: int
) -> None:
    ended = run(tmp_path, "one", code)
    assert (ended.how, ended.detail, ended.rows) == (how, detail, rows)
    assert [row["number"] for row in read_records(tmp_path / "one.jsonl")] == [1, 2][:rows]


@pytest.mark.slow
@pytest.mark.parametrize("code", [HANG, STUBBORN])
def test_a_section_that_hangs_is_ended_at_its_limit(tmp_path: Path, code: str) -> None:
    ended = run(tmp_path, "hang", code, LIMIT, grace=0.2)
    assert (ended.how, ended.rows) == ("timed out", 1)
    assert ended.detail == f"still running after {LIMIT:.0f} s"


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
def test_what_a_section_started_ends_with_it(tmp_path: Path) -> None:
    with living(tmp_path) as (path, end):
        child = f"subprocess.Popen([sys.executable, '-c', {HOLDS!r}, {path!r}])"
        code = f"import signal, subprocess, sys; {child}; {WRITE}signal.pause()"
        ended = run(tmp_path, "parent", code, LIMIT, grace=0.2)
        assert ended.how == "timed out"
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
                run(tmp_path, "one", code)
            assert raised.value.code == 128 + signal.SIGTERM
            assert os.read(end, 16) == b"x"
            assert os.read(end, 16) == b""
    finally:
        signal.signal(signal.SIGTERM, before)


def checked(folder: Path, codes: dict[str, str], total_seconds: float = 120.0) -> gpu_check.Checked:
    sections = [section(name, code) for name, code in codes.items()]
    return gpu_check.run_sections(sections, folder, folder / "cache", total_seconds)


@pytest.mark.slow
def test_sections_that_are_not_timed_run_beside_each_other_and_end_apart(tmp_path: Path) -> None:
    """Each waits for what the other does."""
    wait = "import pathlib, sys, time; mine, other = map(pathlib.Path, sys.argv[1:]); mine.touch()\n"
    wait += f"while not other.exists(): time.sleep(0.01)\n{WRITE}"
    paths = [str(tmp_path / name) for name in ("a", "b")]
    both = [section(name, wait)._replace(timed=False) for name in ("first", "second")]
    both = [
        one._replace(command=(*one.command, *ends))
        for one, ends in zip(both, (paths, paths[::-1]), strict=True)
    ]
    hanging = section("third", HANG)._replace(timed=False, seconds=LIMIT)
    alone = section("fourth", FINE)
    assert [len(group) for group in gpu_check.groups([*both, hanging, alone])] == [3, 1]
    found = gpu_check.run_sections([*both, hanging, alone], tmp_path, tmp_path / "cache", 2 * LIMIT)
    assert [one.how for one in found.ended] == ["done", "done", "timed out", "done"]


def concluded(found: gpu_check.Checked, folder: Path) -> tuple[int, str]:
    out = io.StringIO()
    code = gpu_check.conclude(found, folder, part=None, console=Console(file=out, width=150))
    return code, out.getvalue()


@pytest.mark.slow
def test_the_rest_runs_whatever_becomes_of_a_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    codes = {"first": KILLED, "second": HANG, "third": FAILS, "fourth": FINE}
    found = checked(folder, codes, total_seconds=4 * LIMIT)
    assert [(one.name, one.how, one.rows) for one in found.ended] == [
        ("first", "killed", 1),
        ("second", "timed out", 1),
        ("third", "failed", 2),
        ("fourth", "done", 2),
    ]
    assert "\nfourth: done, 2 rows" in capsys.readouterr().out
    code, text = concluded(found, folder)
    assert code == 1
    for word in ("killed", "SIGKILL", "timed out", "failed", "the third row [x] is wrong", "done"):
        assert word in text
    summary = json.loads((folder / "summary.json").read_text())
    assert [one["how"] for one in summary["sections"]] == ["killed", "timed out", "failed", "done"]
    assert summary["passed"] is False
    assert {"commit", "dirty", "compile_cache"} <= summary.keys()
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        names = archive.getnames()
    assert {f"results/{name}.jsonl" for name in ("first", "second", "third", "fourth")} <= set(names)
    assert "results/summary.json" in names


RECORDED = gpu_check.ROOT / "benchmarks" / "20261127-h200-a419d888-gpu-check"


def test_rows_of_an_h200_are_judged_and_fail_by_its_two_failed_goals(tmp_path: Path) -> None:
    names = ("device", "profiler", "ladder", "float32", "tests")
    for name in names[:2] + names[3:]:
        shutil.copy(RECORDED / f"{name}.jsonl", tmp_path)
    (tmp_path / "ladder.jsonl").write_bytes(gzip.decompress((RECORDED / "ladder.jsonl.gz").read_bytes()))
    ended = [gpu_check.Ended(name, "done", "", 1.0, 1) for name in names]
    found = gpu_check.Checked(started=0.0, seconds=300.0, cold=False, ended=ended, unwatched=None)
    out = io.StringIO()
    assert gpu_check.conclude(found, tmp_path, part=1, console=Console(file=out, width=150)) == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    fails = {goal["name"] for goal in summary["goals"] if goal["decides"] and goal["verdict"] != "pass"}
    assert fails == {"first result on disk", "tests/gpu", "instrumentation full / off, decode step"}
    fastest = max(summary["cells"], key=lambda cell: cell["speedup"])
    assert (fastest["mode"], fastest["kernels"], fastest["launches"]) == ("compiled-captured", 64, 1)


@pytest.mark.slow
def test_only_success_all_round_passes_and_what_there_was_no_time_for_fails(tmp_path: Path) -> None:
    assert concluded(checked(tmp_path, {"first": FINE, "second": FINE}), tmp_path)[0] == 0
    found = checked(tmp_path, {"first": FINE}, total_seconds=0.0)
    assert [one.how for one in found.ended] == ["not begun"]
    code, text = concluded(found, tmp_path)
    assert code == 1
    assert "not begun" in text
