"""What a fleet and its command do with tasks, on a Ray that is a few lines of Python."""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import launchbound
from loadtests.compare.runs import LETTERS
from loadtests.fleet import run
from loadtests.fleet.node import installed_code, machine_to_itself, sweep_on_node
from loadtests.fleet.plan import (
    FLEET_FILE,
    HUB,
    MOST_TASKS,
    Fleet,
    FleetPlan,
    FleetTask,
    Try,
    read_fleet,
    read_fleet_plan,
    write_fleet,
)
from loadtests.fleet.report import CSV_FILE, PAGE_FILE, make_fleet_report
from loadtests.fleet.run import MOST_TRIES, SWEEP_COMMAND, alive, begin, described, go_on, planned, unpack
from loadtests.plan.cells import PlanError
from loadtests.plan.plan_file import parse_plan, toml_of
from loadtests.plan.presets import make_plan, overridden, preset_document
from loadtests.run.rows import RowsError
from loadtests.run.run_file import RunError
from models.config import CONFIGS
from models.hf.files import PREFIX
from service import ray_cluster
from service.cli.options import EXIT_FAILED, EXIT_MACHINE
from tests.loadtests.fleet.fake_ray import FakeRay, RayError, RayTaskError, Told, brought, node
from tests.support.made_results import CLEAR, make_results

LOST = RayError("the node died. Look there")
KIND = 'machines = ["k"]'


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = make_plan("quick", 1, ["eager", "inference_mode"], [1])
    return make_results(tmp_path_factory.mktemp("results"), plan=plan)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "POLL_SECONDS", 0.0)


def plan_of(folder: Path, text: str = 'machines = ["a", "b"]') -> FleetPlan:
    path = folder / "plan.toml"
    path.write_text(f'name = "which"\n{text}\n')
    return read_fleet_plan(path)


def states(fleet: Fleet) -> dict[str, str]:
    return {task.machine: task.state for task in fleet.tasks}


def silent(line: str) -> None:
    """A report that nobody reads."""


def raising(error: BaseException) -> Callable[..., Any]:
    def raises(*_: object, **__: object) -> None:
        raise error

    return raises


def ray_of(results: Path, *nodes: str) -> FakeRay:
    """Nodes of kinds of their own names, on which every task begins and brings `results`."""
    return FakeRay(*(node(name, name) for name in nodes), script=lambda task, _: [task[0], brought(results)])


def one_node(*told: Told) -> FakeRay:
    """One node of kind k, on which every task is told of so."""
    return FakeRay(node("a", "k"), script=lambda *_: told)


def test_every_task_comes_back_with_its_folder_whole(tmp_path: Path, results: Path) -> None:
    fleet = begin(ray_of(results, "a", "b"), plan_of(tmp_path), tmp_path / "out", silent)
    assert states(fleet) == {"a": "complete", "b": "complete"}
    assert read_fleet(tmp_path / "out") == fleet
    for task in fleet.tasks:
        rows = (tmp_path / "out" / task.name / "requests.jsonl").read_bytes()
        assert rows == (results / "requests.jsonl").read_bytes()
        tries = [(one.address, one.sweep_seconds, one.said) for one in task.tries]
        assert tries == [(task.machine, 60.0, None)]
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {FLEET_FILE, "plan.toml", *(task.name for task in fleet.tasks)}
    with pytest.raises(RunError, match="holds a fleet already"):
        begin(ray_of(results, "a", "b"), plan_of(tmp_path), tmp_path / "out", silent)


def test_ray_is_told_the_kind_of_machine_all_its_cpus_and_how_often_to_try_again(
    tmp_path: Path, results: Path
) -> None:
    nodes = node("a", "k", cpus=16, gpus=2), node("b", "k", cpus=16)
    ray = FakeRay(*nodes, script=lambda *_: ["a", brought(results)])
    begin(ray, plan_of(tmp_path, f'{KIND}\ndevices = ["cpu", "cuda"]'), tmp_path / "out", silent)
    asked = {"num_cpus": 16, "label_selector": {"launchbound-machine": "k"}, "max_retries": MOST_TRIES - 1}
    assert [options for _, options in ray.submitted] == [{**asked, "num_gpus": 0}, {**asked, "num_gpus": 2}]


def test_it_waits_for_a_node_of_the_kind_but_not_for_ever(tmp_path: Path, results: Path) -> None:
    plan = plan_of(tmp_path, KIND)
    ray = FakeRay(script=lambda *_: ["c", brought(results)])
    lines: list[str] = []

    def joins(line: str) -> None:
        lines.append(line)
        ray.alive = [node("c", "k")]

    assert states(begin(ray, plan, tmp_path / "out", joins, wait_seconds=3600)) == {"k": "complete"}
    assert "waiting for 3600 s" in lines[0]
    (task,) = begin(FakeRay(script=lambda *_: []), plan, tmp_path / "none", silent).tasks
    assert (task.state, task.tries) == ("not begun", [])
    assert "--labels launchbound-machine=k" in (task.said or "")


def test_a_task_whose_node_died_and_that_no_other_can_run_is_given_up_and_run_by_going_on(
    tmp_path: Path, results: Path
) -> None:
    ray = FakeRay(node("a", "k"), script=lambda _, number: ["a"] if number == 0 else ["a", brought(results)])

    def dies() -> None:
        ray.alive = []

    ray.on_wait = dies
    (task,) = begin(ray, plan_of(tmp_path, KIND), tmp_path / "out", silent).tasks
    assert (task.state, ray.cancelled) == ("lost", [0])
    ray.on_wait, ray.alive = lambda: None, [node("a", "k")]
    assert states(go_on(ray, tmp_path / "out", silent)) == {"k": "complete"}


@pytest.mark.parametrize(
    ("end", "state", "said"),
    [
        (LOST, "lost", "RayError: the node died"),
        (RayTaskError(RuntimeError("it has launchbound 0")), "failed", "it has launchbound 0"),
    ],
)
def test_what_ray_gives_up_is_lost_and_what_the_node_says_has_failed(
    end: Exception, state: str, said: str, tmp_path: Path
) -> None:
    ray = one_node("a", end)
    (task,) = begin(ray, plan_of(tmp_path, KIND), tmp_path / "out", silent).tasks
    assert (task.state, task.said) == (state, said)
    assert len(ray.submitted) == 1


def test_a_sweep_whose_gate_failed_is_kept_and_not_run_again(tmp_path: Path) -> None:
    plan = make_plan("quick", 1, ["eager", "inference_mode"], [1])
    ray = one_node("a", brought(make_results(tmp_path / "results", plan=plan, fail=1), exit_code=1))
    assert states(begin(ray, plan_of(tmp_path, KIND), tmp_path / "out", silent)) == {"k": "not valid"}
    with pytest.raises(RunError, match="nothing is left to run"):
        go_on(ray, tmp_path / "out", silent)


@pytest.mark.parametrize(
    ("file", "content", "exit_code", "said"),
    [
        (
            "sweep.log",
            'launchbound: no such model\n{"valid": false}\n',
            2,
            "code 2: launchbound: no such",
        ),
        ("run.json", "{", 0, "run.json is broken"),
    ],
)
def test_a_sweep_without_results_has_failed_with_its_reason_and_is_run_by_going_on(
    file: str, content: str, exit_code: int, said: str, tmp_path: Path, results: Path
) -> None:
    (tmp_path / "came").mkdir()
    (tmp_path / "came" / file).write_text(content)

    def script(_: str, number: int) -> Sequence[Told]:
        return ["a", brought(tmp_path / "came", exit_code) if number == 0 else brought(results)]

    ray = FakeRay(node("a", "k"), script=script)
    (task,) = begin(ray, plan_of(tmp_path, KIND), tmp_path / "out", silent).tasks
    assert (task.state, task.exit_code) == ("failed", exit_code)
    assert said in (task.said or "")
    assert states(go_on(ray, tmp_path / "out", silent)) == {"k": "complete"}


def test_a_kind_without_a_gpu_is_left_out_of_cuda_and_one_with_it_is_not(
    tmp_path: Path, results: Path
) -> None:
    ray = FakeRay(node("a", "a"), node("b", "b", gpus=1), script=lambda *_: ["b", brought(results)])
    plan = plan_of(tmp_path, 'machines = ["a", "b"]\ndevices = ["cuda"]')
    fleet = begin(ray, plan, tmp_path / "out", silent, wait_seconds=3600)
    assert states(fleet) == {"a": "left out", "b": "complete"}
    assert fleet.owed == []


def two_at_once(results: Path) -> FakeRay:
    """The task of `a` comes back, and that of `b` runs for ever."""
    return FakeRay(
        node("a", "a"),
        node("b", "b"),
        script=lambda task, _: ["a", brought(results)] if task[0] == "a" else ["b"],
    )


def test_an_interruption_ends_what_runs_and_going_on_runs_only_the_rest(
    tmp_path: Path, results: Path
) -> None:
    ray = two_at_once(results)

    def interrupted(line: str) -> None:
        if line.endswith(": complete"):
            ray.on_wait = raising(KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        begin(ray, plan_of(tmp_path), tmp_path / "out", interrupted)
    stopped = read_fleet(tmp_path / "out")
    assert states(stopped) == {"a": "complete", "b": "not begun"}
    assert (stopped.stopped_because, ray.cancelled) == ("interrupted", [1])
    again = ray_of(results, "b")
    finished = go_on(again, tmp_path / "out", silent)
    assert states(finished) == {"a": "complete", "b": "complete"}
    assert [task for task, _ in again.submitted] == ["b-cpu-float32-tiny"]
    assert finished.stopped_because is None


def test_one_that_cannot_be_ended_leaves_no_other_running_and_all_is_kept(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "unpack", raising(OSError(errno.ENOSPC, "no space left")))
    ray = two_at_once(results)
    monkeypatch.setattr(ray, "cancel", raising(ValueError("it is gone")))
    lines: list[str] = []
    with pytest.raises(OSError, match="no space left"):
        begin(ray, plan_of(tmp_path), tmp_path / "out", lines.append)
    assert sum("could not be ended" in line for line in lines) == 2
    stopped = read_fleet(tmp_path / "out")
    assert "no space left" in (stopped.stopped_because or "")
    assert set(states(stopped).values()) == {"not begun"}


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "..", ".hidden", "a/b"])
def test_other_code_and_a_task_whose_name_leads_out_of_its_folder_are_not_gone_on_with(
    name: str, tmp_path: Path
) -> None:
    ray = FakeRay(script=lambda *_: [])
    fleet = begin(ray, plan_of(tmp_path), tmp_path / "out", silent)
    fleet.code = f"0.0.1 {installed_code()}"
    write_fleet(tmp_path / "out", fleet)
    with pytest.raises(RunError, match=r"begun with launchbound 0\.0\.1"):
        go_on(ray, tmp_path / "out", silent)
    fleet.tasks[0].name = name
    write_fleet(tmp_path / "out", fleet)
    with pytest.raises(RunError, match=r"fleet\.json is broken"):
        go_on(ray, tmp_path / "out", silent)


def test_no_result_is_written_under_a_name_that_leads_out_of_its_folder(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in ("../evil", "/evil", "a/../../evil", "good"):
            archive.writestr(name, name)
    (tmp_path / "out").mkdir()
    unpack(data.getvalue(), tmp_path / "out" / "task")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["task"]
    assert (tmp_path / "out" / "task" / "good").is_file()


def test_a_dry_run_says_where_how_long_at_what_price_and_what_is_missing(tmp_path: Path) -> None:
    ray = FakeRay(node("a", "a"), node("h", None), script=lambda *_: [])
    plan = plan_of(tmp_path, 'machines = ["a", "b"]\n[prices]\na = 36')
    nodes = alive(ray)
    text = described(plan, planned(plan, nodes, None).tasks, nodes)
    assert "a-cpu-float32-tiny" in text
    assert "on a (aaaaaaaa), about $" in text
    assert "CANNOT RUN NOW: no node of its kind has what it needs" in text


def stopped_by(error: BaseException, task: str, results: Path, folder: Path) -> Result:
    """The command, on a cluster without Ray, which `error` stops while it unpacks `task`."""
    unpack = run.unpack

    def unpacked(data: bytes, into: Path) -> None:
        if into.name == task:
            raise error
        unpack(data, into)

    @contextmanager
    def connected(*_: Any) -> Iterator[FakeRay]:
        yield ray_of(results, "a", "b")

    plan_of(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "unpack", unpacked)
        patch.setattr(ray_cluster, "connected", connected)
        patch.setattr(ray_cluster, "environment", lambda _: {})
        command = ["fleet", str(folder / "plan.toml"), f"--out={folder / 'out'}"]
        return CliRunner().invoke(launchbound.app, command)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "task", "code", "said", "left"),
    [
        (KeyboardInterrupt(), "b-cpu-float32-tiny", EXIT_FAILED, "interrupted", ["complete", "not begun"]),
        (KeyboardInterrupt(), "a-cpu-float32-tiny", 130, "interrupted", ["not begun", "not begun"]),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "b-cpu-float32-tiny",
            EXIT_MACHINE,
            "no space left for",
            ["complete", "not begun"],
        ),
    ],
    ids=["interrupted", "interrupted at the first", "disk full"],
)
def test_a_command_that_is_stopped_says_how_to_go_on_and_reports_what_has_finished(
    error: BaseException, task: str, code: int, said: str, left: list[str], tmp_path: Path, results: Path
) -> None:
    ended = stopped_by(error, task, results, tmp_path)
    assert ended.exit_code == code, ended.output
    assert said in ended.output
    assert f"launchbound fleet --resume {tmp_path / 'out'}" in ended.output
    assert (tmp_path / "out" / PAGE_FILE).is_file() == (code == EXIT_FAILED)
    fleet = read_fleet(tmp_path / "out")
    assert [one.state for one in fleet.tasks] == left
    assert said.partition(" for")[0] in (fleet.stopped_because or "").lower()


# ---------------------------------------------------------------- what runs on a node

NODE_PLAN = toml_of(overridden(preset_document("quick"), modes=["eager", "inference_mode"], batch_sizes=[1]))
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
        sweep_on_node("task", NODE_PLAN, OPTIONS, other, None)


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
    plan.write_text(NODE_PLAN)
    arguments = [*SWEEP_COMMAND[2:], *OPTIONS, f"--plan={plan}", f"--out={tmp_path}", "--dry-run"]
    done = CliRunner().invoke(launchbound.app, arguments)
    assert done.exit_code == 0, done.output
    assert "inference_mode b=1" in done.output


# ---------------------------------------------------------------- reports

MEASURED = make_plan("quick", 1, ["eager", "inference_mode", "compiled"], [1, 4])
TWICE = {mode: 0.5 * value for mode, value in CLEAR.items()}


def task(
    machine: str, *, model: str = "tiny", price: float | None = None, state: Any = "complete"
) -> FleetTask:
    attempt = Try(node="n", address=machine, started="", sweep_seconds=60.0, control_seconds=1.25, niceness=0)
    return FleetTask(
        name=f"{machine}-{model}", machine=machine, device="cpu", dtype="float32", model=model, price=price,
        state=state, tries=[attempt],
    )  # fmt: skip


def fleet_in(folder: Path, *tasks: FleetTask) -> Path:
    code = installed_code()
    write_fleet(folder, Fleet(name="which", started="", plan="", sweep="", code=code, tasks=list(tasks)))
    return folder


def measured(folder: Path, machine: str, relative: dict[str, float], **options: Any) -> FleetTask:
    """A task that has its results."""
    of_task = {key: options.pop(key) for key in ("model", "price", "state") if key in options}
    found = task(machine, **of_task)
    make_results(folder / found.name, relative, plan=MEASURED, **options)
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A machine twice as fast and ten times as dear as the other, and one that could not run."""
    folder = tmp_path_factory.mktemp("fleet")
    slow = measured(folder, "slow", CLEAR, price=1.0, seed=3)
    fast = measured(folder, "fast", TWICE, price=10.0, seed=4)
    gone = task("gone", state="lost")
    gone.said = "its node died"
    return folder, make_fleet_report(fleet_in(folder, slow, fast, gone))


def test_the_first_sentence_says_which_machine_and_which_mode_after_what_is_not_there(
    two: tuple[Path, dict[str, Any]],
) -> None:
    _, found = two
    assert found["headline"] == (
        "NOT MEASURED: gone-tiny. Most tokens per second: B (fast) with compiled at batch 1 and batch 4. "
        "Most tokens per dollar: A (slow) with compiled at batch 1 and batch 4."
    )
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        for end in ("", "_low", "_high"):
            hour = 3600 * row[f"tokens_per_second{end}"]
            assert row[f"tokens_per_dollar{end}"] == pytest.approx(hour / row["price_dollars_per_hour"])


def test_page_markdown_and_csv_have_the_same_numbers_states_and_control_plane_time(
    two: tuple[Path, dict[str, Any]],
) -> None:
    folder, found = two
    page, text = ((folder / name).read_text() for name in (PAGE_FILE, "fleet.md"))
    for shown in (found["headline"], "its node died", "1.25 s", "slow-tiny"):
        assert shown in page
        assert shown in text
    assert "src=" not in page.partition("<main>")[0]
    with (folder / CSV_FILE).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["task"] for row in rows] == [row["task"] for row in found["rows"]]
    for row, shown in zip(rows, found["rows"], strict=True):
        assert float(row["latency_seconds"]) == shown["latency_seconds"]


def test_a_machine_whose_name_is_a_formula_is_a_text_in_the_csv_file(tmp_path: Path) -> None:
    evil = measured(tmp_path, "evil", CLEAR)
    evil.machine = '=HYPERLINK("http://stranger.example")'
    make_fleet_report(fleet_in(tmp_path, evil))
    with (tmp_path / CSV_FILE).open() as file:
        rows = list(csv.DictReader(file))
    assert {row["machine"] for row in rows} == {f"'{evil.machine}"}
    assert all(float(row["latency_seconds"]) > 0 for row in rows)


@pytest.mark.parametrize("faster", [1.0, 1.15])
def test_machines_that_differ_by_less_than_sweeps_of_one_scatter_are_not_called_apart(
    tmp_path: Path, faster: float
) -> None:
    one = measured(tmp_path, "one", CLEAR, seed=3)
    other = measured(tmp_path, "other", {mode: value / faster for mode, value in CLEAR.items()}, seed=4)
    found = make_fleet_report(fleet_in(tmp_path, one, other))
    assert found["headline"] == "The machines are not told apart in tokens per second at batch 1 and batch 4."
    assert "per dollar" not in found["headline"]
    assert "no price in the plan" in (tmp_path / "fleet.md").read_text()


def test_a_machine_whose_sweep_is_not_valid_is_said_first_and_wins_nothing(tmp_path: Path) -> None:
    bad = measured(tmp_path, "bad", TWICE, state="not valid", fail=1)
    good = measured(tmp_path, "good", CLEAR)
    found = make_fleet_report(fleet_in(tmp_path, bad, good))
    assert found["headline"].startswith("NOT VALID: A (bad). One machine alone: B (good) with compiled at ")
    assert {row["valid"] for row in found["rows"] if row["task"] == bad.name} == {False}
    done = CliRunner().invoke(launchbound.app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert found["headline"] in done.stdout


def test_models_are_not_compared_with_each_other(tmp_path: Path) -> None:
    tiny, small = (measured(tmp_path, "m", CLEAR, model=model) for model in ("tiny", "small"))
    found = make_fleet_report(fleet_in(tmp_path, tiny, small))
    assert "tiny: One machine alone: A (m, tiny) with compiled" in found["headline"]
    assert "small: One machine alone: B (m, small) with compiled" in found["headline"]
    assert "Most tokens" not in found["headline"]


def test_what_is_left_out_is_said_and_makes_no_fleet_invalid(tmp_path: Path) -> None:
    good, none = measured(tmp_path, "good", CLEAR), task("none", state="left out")
    none.said = "no node of kind none offers a GPU to Ray"
    done = CliRunner().invoke(launchbound.app, ["report", str(fleet_in(tmp_path, good, none))])
    assert done.exit_code == 0
    assert "NOT MEASURED" not in done.stdout
    assert none.said in (tmp_path / PAGE_FILE).read_text()


def test_a_fleet_of_which_nothing_is_measured_says_what_its_tasks_said(tmp_path: Path) -> None:
    gone = task("gone", state="failed")
    gone.said = "no such model"
    with pytest.raises(RowsError, match="gone-tiny: failed; no such model"):
        make_fleet_report(fleet_in(tmp_path, gone))


# ---------------------------------------------------------------- plans

INLINE = """\
name = "which"
machines = ["epyc", "h200"]
models = ["tiny"]
dtypes = ["float32", "bfloat16"]
[prices]
epyc = 0.1
[sweep]
name = "own"
modes = ["eager", "inference_mode"]
batch_sizes = [1]
rounds = 8
[[sweep.closed_loop]]
requests = 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_there_is_a_task_per_machine_device_precision_and_model(tmp_path: Path) -> None:
    plan = read_fleet_plan(written(tmp_path, INLINE))
    names = [task.name for task in plan.tasks([])]
    assert names == [
        "epyc-cpu-float32-tiny",
        "epyc-cpu-bfloat16-tiny",
        "h200-cpu-float32-tiny",
        "h200-cpu-bfloat16-tiny",
    ]
    assert plan.plan.batch_sizes == [1]
    assert plan.document.prices == {"epyc": 0.1}
    every = read_fleet_plan(written(tmp_path, 'name = "all"\nmodels = ["hf:org/a model"]\n'))
    assert [task.name for task in every.tasks(["a"])] == ["a-cpu-float32-hf-org-a-model"]


def test_a_sweep_is_a_preset_or_a_file_beside_it_with_its_modes_by_name(tmp_path: Path) -> None:
    preset = read_fleet_plan(written(tmp_path, 'name = "x"\nsweep = "quick"\n'))
    assert parse_plan(preset.sweep).rounds == preset_document("quick").rounds
    assert parse_plan(preset.sweep).modes == preset.plan.modes
    night = 'name = "n"\nbatch_sizes = [2]\nrounds = 3\n[[closed_loop]]\nrequests = 1\n'
    (tmp_path / "night.toml").write_text(night)
    beside = read_fleet_plan(written(tmp_path, 'name = "x"\nsweep = "night.toml"\n'))
    assert (beside.plan.rounds, beside.plan.batch_sizes) == (3, [2])
    with pytest.raises(PlanError, match=r"fleet\.toml, line 2: .* no preset \(quick, .*no file"):
        read_fleet_plan(written(tmp_path, 'name = "x"\nsweep = "nothing.toml"\n'))


@pytest.mark.parametrize(
    ("change", "line", "remedy"),
    [
        (("machines =", "machine ="), 2, "did you mean `machines`"),
        (('"bfloat16"]', '"int4"]'), 4, "write one of float32, bfloat16"),
        (("epyc = 0.1", "epyc = 0"), 5, "change the value"),
        (("epyc = 0.1", "epyc = inf"), 5, "change the value"),
        (('"epyc", "h200"', '"my epyc"'), 2, "change the value"),
        (("rounds = 8", "round = 8"), 11, "did you mean `rounds`"),
        (("requests = 2", "request = 2"), 13, "did you mean `requests`"),
        (('"eager", "inference_mode"', '"inference_mode"'), 9, "add it to the modes"),
        (('name = "own"', 'name = "own"\ndtypes = ["float32"]'), 7, "name them for the fleet"),
        (('["tiny"]', '[\n"tiny",\n"models/mine"]'), 3, "absolute path of a folder that every node has"),
        (('["tiny"]', '["nosuch"]'), 3, "name one of tiny, small, base, hf:HUB-ID"),
        (('["tiny"]', '["hf:./mine"]'), 3, "`hf:./mine` is a relative path"),
    ],
)
def test_what_makes_no_plan_is_named_with_line_and_remedy(
    change: tuple[str, str], line: int, remedy: str, tmp_path: Path
) -> None:
    path = written(tmp_path, INLINE.replace(*change))
    with pytest.raises(PlanError) as error:
        read_fleet_plan(path)
    assert str(error.value).startswith(f"{path}, line {line}: ")
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    ("more", "kinds", "refusal"),
    [
        ("", [], "launchbound-machine=KIND"),
        ("[prices]\nepyc = 1\nh20 = 2", ["epyc", "h200"], "names h20, and .* epyc, h200: name one of these"),
        ('models = ["hf:a/b", "hf:a-b"]', ["m"], "two tasks are called m-cpu-float32-hf-a-b"),
        ("", [f"kind{number}" for number in range(MOST_TASKS + 1)], "make several plans"),
    ],
)
def test_tasks_that_a_fleet_cannot_have_are_refused(
    more: str, kinds: list[str], refusal: str, tmp_path: Path
) -> None:
    plan = read_fleet_plan(written(tmp_path, f'name = "x"\n{more}\n'))
    with pytest.raises(PlanError, match=refusal):
        plan.tasks(kinds)
    assert len(LETTERS) == MOST_TASKS


def test_a_model_is_a_name_an_id_of_the_hub_or_a_folder_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HUB == PREFIX
    names = [*CONFIGS, "hf:org/name", "/data/model", "hf:/data/model", "hf:~/model"]
    text = f'name = "x"\nmodels = {json.dumps(names)}\n'
    plan, here = written(tmp_path, text), tmp_path / "here"
    assert read_fleet_plan(plan).document.models == names
    for folder in (here, tmp_path):
        (folder / "org" / "name").mkdir(parents=True)
        monkeypatch.chdir(here)
        with pytest.raises(PlanError, match="line 2: `hf:org/name` is a relative path"):
            read_fleet_plan(plan)
        (folder / "org" / "name").rmdir()
