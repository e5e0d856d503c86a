"""A section that crashes, hangs or prints garbage ends alone: its rows stay, the rest runs, all is said."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from service.proof.gpu_check import Checked, Ended, Section, conclude, run_section, run_sections
from service.proof.gpu_check import end as end_check
from service.proof.gpu_goals import read_records

pytestmark = pytest.mark.slow

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
CUT_OFF = FINE + "; open(rows.path, 'ab').write(b'{\"kind\": \"thr')"
SILENT = "pass"
LIMIT = 6.0


def section(name: str, code: str) -> Section:
    return Section(name, LIMIT, f"what {name} does", ("-c", code))


def run(folder: Path, name: str, code: str, limit: float = 60.0, grace: float = 5.0) -> Ended:
    return run_section(section(name, code), folder, dict(os.environ), limit, grace)


@pytest.mark.parametrize(
    ("code", "how", "detail", "rows"),
    [
        (FINE, "done", "", 2),
        (CRASH, "failed", "exit code 7", 1),
        (KILLED, "killed", "by SIGKILL", 1),
        (FAILS, "failed", "exit code 1: ValueError: the third row [x] is wrong", 2),
        (GARBAGE, "done", "", 2),
        (CUT_OFF, "done", "", 2),
        (SILENT, "failed", "ended well, but wrote no row", 0),
    ],
)
def test_what_was_written_stays_and_the_ending_is_said(
    tmp_path: Path, code: str, how: str, detail: str, rows: int
) -> None:
    ended = run(tmp_path, "one", code)
    assert (ended.how, ended.detail, ended.rows) == (how, detail, rows)
    assert [row["number"] for row in read_records(tmp_path / "one.jsonl")] == [1, 2][:rows]


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


def test_what_a_section_started_ends_with_it(tmp_path: Path) -> None:
    with living(tmp_path) as (path, end):
        child = f"subprocess.Popen([sys.executable, '-c', {HOLDS!r}, {path!r}])"
        code = f"import signal, subprocess, sys; {child}; {WRITE}signal.pause()"
        ended = run(tmp_path, "parent", code, LIMIT, grace=0.2)
        assert ended.how == "timed out"
        # Blocks for ever where the process still holds the pipe.
        assert os.read(end, 16) == b"x"
        assert os.read(end, 16) == b""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_process_that_cannot_be_killed_is_left_behind_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = subprocess.Popen.wait

    def hung_in_a_driver(child: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        assert timeout is not None, "waits for ever"
        patient(child)
        child.returncode = None
        raise subprocess.TimeoutExpired(child.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", hung_in_a_driver)
    monkeypatch.setattr(subprocess.Popen, "poll", lambda child: child.returncode)
    monkeypatch.setattr(os, "killpg", lambda group, number: None)
    ended = run(tmp_path, "hung", FINE, limit=1.0, grace=0.1)
    assert (ended.how, ended.rows) == ("timed out", 2)
    assert ended.detail == "still running after 1 s; it could not be killed"


def test_a_runner_that_is_told_to_end_ends_its_section(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, end_check)
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


def checked(folder: Path, codes: dict[str, str], total_seconds: float = 120.0) -> tuple[Checked, list[str]]:
    said: list[str] = []
    sections = [section(name, code) for name, code in codes.items()]
    return run_sections(sections, folder, folder / "cache", total_seconds, said.append), said


def concluded(found: Checked, folder: Path) -> tuple[int, str]:
    out = io.StringIO()
    code = conclude(found, folder, part=None, console=Console(file=out, width=150))
    return code, out.getvalue()


def test_the_rest_runs_whatever_becomes_of_a_section(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    codes = {"first": KILLED, "second": HANG, "third": FAILS, "fourth": FINE}
    found, said = checked(folder, codes, total_seconds=4 * LIMIT)
    assert [(one.name, one.how, one.rows) for one in found.ended] == [
        ("first", "killed", 1),
        ("second", "timed out", 1),
        ("third", "failed", 2),
        ("fourth", "done", 2),
    ]
    assert any(line.startswith("fourth: done, 2 rows") for line in said)
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


def test_only_an_all_round_success_passes(tmp_path: Path) -> None:
    found, _ = checked(tmp_path, {"first": FINE, "second": FINE})
    assert concluded(found, tmp_path)[0] == 0


def test_what_there_was_no_time_for_is_said_and_fails(tmp_path: Path) -> None:
    found, _ = checked(tmp_path, {"first": FINE}, total_seconds=0.0)
    assert [one.how for one in found.ended] == ["not begun"]
    code, text = concluded(found, tmp_path)
    assert code == 1
    assert "not begun" in text
