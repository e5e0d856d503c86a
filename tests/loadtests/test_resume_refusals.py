"""What a sweep is not gone on with: another plan, code, machine or service, or a folder in use."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import launchbound
from loadtests.report.results import read_results
from loadtests.run.folder import FolderInUse, locked
from loadtests.run.resumption import CannotResume
from loadtests.run.rows import ROWS_FILE
from loadtests.run.run_file import read_run, write_run
from service.cli.options import EXIT_BAD_INPUT
from tests.support.killed_sweeps import resumed

pytestmark = pytest.mark.slow


def test_a_complete_sweep_is_not_gone_on_with(stopped: tuple[str, Path]) -> None:
    url, folder = stopped
    resumed(url, folder)
    with pytest.raises(CannotResume, match="is complete"):
        resumed(url, folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: run.environment.update(commit="000000000000"), "commit was 000000000000, and is"),
        (lambda run: run.environment.update(cpu="another"), "cpu was another"),
        (lambda run: run.environment.update(dirty=True), "dirty was True, and is False now"),
        (lambda run: run.engine.update(model_hash="ffff"), "model_hash was ffff, and is 0123456789ab now"),
        (lambda run: run.engine.update(threads=2), "threads was 2"),
        (lambda run: run.engine.update(linears={"layout": "aten"}), "LAUNCHBOUND_LINEARS was aten"),
        (lambda run: run.settings.update(prompt_file="other.jsonl"), "prompt file was other.jsonl"),
        (lambda run: run.parts.clear(), "before sweeps could be resumed"),
        (
            lambda run: setattr(run, "service", {"options": {}, "environment": {"LAUNCHBOUND_THREADS": "1"}}),
            "LAUNCHBOUND_THREADS was 1, and is not set now",
        ),
    ],
)
def test_what_differs_from_the_beginning_is_refused_and_named(
    stopped: tuple[str, Path], spoil: Any, message: str
) -> None:
    url, folder = stopped
    run = read_run(folder)
    spoil(run)
    write_run(folder, run)
    rows = (folder / ROWS_FILE).read_bytes()
    with pytest.raises(CannotResume, match=message):
        resumed(url, folder)
    assert (folder / ROWS_FILE).read_bytes() == rows


def test_a_sweep_with_a_failed_request_is_not_gone_on_with(stopped: tuple[str, Path]) -> None:
    url, folder = stopped
    path = folder / ROWS_FILE
    first, *others = path.read_text().splitlines(keepends=True)
    failed = json.loads(first) | {"status": 503, "error": "the engine is restarting"}
    path.write_text(json.dumps(failed) + "\n" + "".join(others))
    with pytest.raises(CannotResume, match=r"1 requests of .* failed, .*: run the sweep again"):
        resumed(url, folder)
    complete = next(gate for gate in read_results(folder).failed_gates if gate.name == "complete")
    assert "--resume" not in complete.detail
    assert "run the sweep again" in complete.detail


def test_linears_that_give_the_same_layout_by_another_name_are_no_difference(
    stopped: tuple[str, Path],
) -> None:
    url, folder = stopped
    run = read_run(folder)
    run.service = {"options": {}, "environment": {"LAUNCHBOUND_LINEARS": "auto"}}
    write_run(folder, run)
    assert resumed(url, folder).run.complete


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "quick"], "has another plan"),
        (["--model", "small"], "leave out all but"),
        (["--dry-run"], "leave out all but"),
    ],
)
def test_options_that_would_change_it_are_refused(
    stopped: tuple[str, Path], options: list[str], message: str
) -> None:
    shown = CliRunner().invoke(launchbound.app, ["sweep", "--resume", str(stopped[1]), *options])
    assert shown.exit_code == EXIT_BAD_INPUT
    assert message in shown.stderr


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path) -> None:
    shown = CliRunner().invoke(launchbound.app, ["sweep", "--resume", str(tmp_path)])
    assert shown.exit_code == EXIT_BAD_INPUT
    assert "is no results folder" in shown.stderr


def test_two_sweeps_cannot_share_a_folder_and_the_other_is_named(stopped: tuple[str, Path]) -> None:
    url, folder = stopped
    holder = (
        "import sys; from pathlib import Path; from loadtests.run.folder import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(FolderInUse, match=f"process {other.pid}"):
            resumed(url, folder)
        other.send_signal(signal.SIGKILL)
        other.wait()
        with locked(folder):
            assert (folder / "sweep.lock").read_text() == f"{os.getpid()}\n"
    assert not (folder / "sweep.lock").exists()


def test_a_lock_whose_file_was_removed_meanwhile_is_not_held_twice(tmp_path: Path) -> None:
    with locked(tmp_path) as descriptor:
        (tmp_path / "sweep.lock").unlink()
        with locked(tmp_path) as another:
            assert os.fstat(descriptor).st_ino != os.fstat(another).st_ino
            with pytest.raises(BlockingIOError), (tmp_path / "sweep.lock").open() as third:
                fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)
