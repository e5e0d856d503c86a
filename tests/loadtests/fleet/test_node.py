"""What runs on a node: the sweep as a child that has the machine to itself, without Ray's environment."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import launchbound
from loadtests.fleet.node import installed_code, machine_to_itself, sweep_on_node
from loadtests.fleet.run import SWEEP_COMMAND
from loadtests.plan.plan_file import toml_of
from loadtests.plan.presets import overridden, preset_document

PLAN = toml_of(overridden(preset_document("quick"), modes=["eager", "inference_mode"], batch_sizes=[1]))
OPTIONS = ["--model=tiny", "--device=cpu", "--dtype=float32"]

HOLDING = """\
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from loadtests.fleet.node import machine_to_itself
with machine_to_itself() as (folder, lock):
    (folder / "left").touch()
    print("has it", flush=True)
    sys.stdin.read()
"""


def test_other_code_than_the_drivers_runs_nothing() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install launchbound[ray]")
    other = f"0.0.1 {installed_code()}"
    with pytest.raises(RuntimeError, match=r"this command is 0\.0\.1.*install the same on both"):
        sweep_on_node("task", PLAN, OPTIONS, other, None)


def test_a_sweep_has_the_variables_of_before_ray_and_not_rays_own() -> None:
    code = (
        "import os; os.environ['OMP_NUM_THREADS'] = '7'; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
        "from loadtests.fleet.node import environment_before_ray as before\n"
        "print([before().get(n) for n in ('OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES', 'RAY_JOB_ID', 'OURS')])"
    )
    environment = {**os.environ, "RAY_JOB_ID": "1", "OURS": "a=b"}
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[None, None, None, 'a=b']"


def test_a_machine_is_one_sweeps_at_a_time_and_what_a_killed_one_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arguments = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"has it\n"
        (place,) = tmp_path.iterdir()
        with (place / "lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.kill()
    assert (place / "sweep" / "left").exists()
    with machine_to_itself() as (folder, _):
        assert list(folder.iterdir()) == []


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"launchbound-fleet-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(RuntimeError, match="set TMPDIR"), machine_to_itself():
        pass


def test_the_command_line_of_a_node_is_one_that_sweep_takes(tmp_path: Path) -> None:
    assert SWEEP_COMMAND[:2] == ("-m", "launchbound")
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    arguments = [*SWEEP_COMMAND[2:], *OPTIONS, f"--plan={plan}", f"--out={tmp_path}", "--dry-run"]
    done = CliRunner().invoke(launchbound.app, arguments)
    assert done.exit_code == 0, done.output
    assert "inference_mode b=1" in done.output
