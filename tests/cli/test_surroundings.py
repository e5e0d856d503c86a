"""Whatever streams, locale, user and folders a command has: it runs, or ends with a sentence and a code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import launchbound
from service.cli.options import EXIT_BAD_INPUT, EXIT_MACHINE

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "launchbound.py")]
NO_UTF8 = os.fsencode("bad") + b"\xff"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(
    *arguments: str | bytes,
    shell: str = "",
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """The command line, with what `shell` says of its streams."""
    command = ["bash", "-c", f'"$0" "$@" {shell}', *COMMAND, *arguments]
    return subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=120,
        check=False,
    )


def said_once(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line.removeprefix("launchbound: ")


@pytest.mark.slow
def test_output_that_cannot_be_written_is_a_fault_of_the_machine() -> None:
    done = run("sweep", "--dry-run", shell=">/dev/full")
    assert said_once(done, EXIT_MACHINE).startswith("No space left on device: free some space")


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_not_taken_by_files(closed: str, tmp_path: Path) -> None:
    """Of a command that opens a file and prints: neither ends up in the other."""
    plan = tmp_path / "plan.toml"
    plan.write_text("nonsense = 1\n")
    done = run("sweep", "--dry-run", "--plan", str(plan), shell=closed)
    assert done.returncode == EXIT_BAD_INPUT
    assert plan.read_text() == "nonsense = 1\n"
    assert ("nonsense" in done.stderr) == ("2>" not in closed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [{**ASCII, "COLUMNS": "0"}, {"PYTHONIOENCODING": "ascii", "TERM": "dumb", "COLUMNS": "20"}],
    ids=str,
)
def test_any_locale_and_terminal_will_do(environment: dict[str, str]) -> None:
    done = run("sweep", "--help", environment=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
def test_an_argument_that_is_no_utf8_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = run("sweep", "--out", NO_UTF8, cwd=tmp_path)
    assert said_once(done, EXIT_BAD_INPUT).startswith("argument 3 is no UTF-8 ('bad\\udcff'): rename it")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["RESULTS_FOLDER", "CACHE_FOLDER", "MODEL", "ADVICE"])
def test_a_setting_that_is_no_utf8_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"LAUNCHBOUND_{name}", os.fsdecode(NO_UTF8))
    with pytest.raises(SystemExit) as ended, launchbound.any_system():
        pytest.fail("the command began")
    assert ended.value.code == EXIT_BAD_INPUT
    assert f"LAUNCHBOUND_{name} is no UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["sweep", "--modes", "eager", "--batch-sizes", "1", "--out"], "file"),
        (["peers", "--out"], "file/below"),
        (["selftest", "--only", "parts", "--out"], "x" * 300),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value[:9],
)
def test_a_results_folder_that_cannot_be_is_refused(
    arguments: list[str],
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCHBOUND_CACHE_FOLDER", str(tmp_path / "cache"))
    Path("file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        launchbound.app([*arguments, place])
    assert ended.value.code == EXIT_BAD_INPUT
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert place in said
    assert "name another place" in said
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_present_folder_that_has_been_removed_is_refused(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["bash", "-c", 'rmdir "$PWD"; "$0" "$@"', *COMMAND, "serve"]
    done = subprocess.run(command, cwd=gone, capture_output=True, text=True, check=False)
    assert "there is no present folder" in said_once(done, EXIT_BAD_INPUT)


@pytest.mark.slow
def test_a_service_whose_address_nobody_can_read_ends() -> None:
    done = run("serve", "--port", "0", "--modes", "inference_mode", shell=">/dev/full")
    assert done.returncode == EXIT_MACHINE
    assert done.stderr.strip().splitlines()[-1].startswith("launchbound: No space left on device")
    assert "Traceback" not in done.stderr


def test_no_temporary_folder_at_all_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(launchbound.tempfile, "gettempdir", none)
    with pytest.raises(SystemExit) as ended, launchbound.any_system():
        pytest.fail("the command began")
    assert ended.value.code == EXIT_BAD_INPUT
    assert "set TMPDIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (PermissionError(13, "Permission denied", "/x"), 2, "/x: Permission denied: name another place"),
        (OSError(28, "No space left on device"), 4, "No space left on device: free some space, then run"),
        (OSError(5, "Input/output error", "/x"), 4, "/x: Input/output error: mend that, then run"),
        (OSError("no program g++"), 4, "no program g++: mend that, then run"),
    ],
    ids=str,
)
def test_an_error_of_the_system_is_told_in_one_sentence(
    error: OSError, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, launchbound.any_system():
        raise error
    assert ended.value.code == code
    assert capsys.readouterr().err.startswith(f"launchbound: {said}")
