"""What runs on a node: the sweep as a child, its environment without Ray's, its folder in pieces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import launchbound
from loadtests.fleet import node
from loadtests.fleet.arrival import Arrival, last_words
from loadtests.fleet.messages import SWEEP_COMMAND as node_command
from loadtests.fleet.messages import Ended, Order, Piece, Refused, Sent, Started
from loadtests.fleet.node import installed_code, run_order
from loadtests.plan.plan_file import toml_of
from loadtests.plan.presets import overridden, preset_document
from loadtests.report.results import read_results
from tests.support.fake_sweep import command

PLAN = toml_of(overridden(preset_document("quick"), modes=["eager", "inference_mode"], batch_sizes=[1]))
OPTIONS = ["--model=tiny", "--device=cpu", "--dtype=float32"]


def order(control: Path) -> Order:
    control.mkdir()
    return Order(plan=PLAN, options=OPTIONS, code=installed_code(), command=command(control))


@pytest.mark.slow
def test_the_folder_that_a_sweep_wrote_arrives_whole_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "PIECE_BYTES", 1000)
    events = list(run_order(order(tmp_path / "control")))
    assert isinstance(events[0], Started)
    assert isinstance(events[1], Ended)
    assert events[1].exit_code == 0
    assert events[1].seconds > 0
    assert isinstance(events[-1], Sent)
    pieces = [event for event in events if isinstance(event, Piece)]
    assert len(pieces) > 1
    arrival = Arrival(tmp_path, "task")
    for piece in pieces:
        arrival.add(piece.data)
    results = read_results(arrival.unpack())
    assert results.run.plan.batch_sizes == [1]
    assert last_words(results.folder) == "the report is written"


def test_other_code_than_the_drivers_runs_nothing(tmp_path: Path) -> None:
    other = msgspec.structs.replace(installed_code(), version="0.0.1")
    (event,) = run_order(msgspec.structs.replace(order(tmp_path / "control"), code=other))
    assert isinstance(event, Refused)
    assert "this command is 0.0.1" in event.said
    assert list((tmp_path / "control").iterdir()) == []


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


def test_a_machine_on_which_another_process_sweeps_is_not_used_and_what_dead_ones_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(node, "ENDED_WITHIN_SECONDS", 0.0)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"launchbound-fleet-{ended.pid}-x").mkdir()
    assert node._machine_taken() is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"launchbound-fleet-{os.getppid()}-x").mkdir()
    (event,) = run_order(order(tmp_path / "control"))
    assert isinstance(event, Refused)
    assert f"process {os.getppid()} sweeps on this machine" in event.said


def test_the_command_line_of_a_node_is_one_that_sweep_takes(tmp_path: Path) -> None:
    assert node_command[:2] == ("-m", "launchbound")
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    arguments = [*node_command[2:], f"--plan={plan}", f"--out={tmp_path}", *OPTIONS, "--dry-run"]
    done = CliRunner().invoke(launchbound.app, arguments)
    assert done.exit_code == 0, done.output
    assert "inference_mode b=1" in done.output
