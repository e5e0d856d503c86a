"""What a fleet does with its tasks, on a Ray that is a few lines of Python."""

from __future__ import annotations

import errno
import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtests.fleet import run
from loadtests.fleet.node import installed_code
from loadtests.fleet.plan import FLEET_FILE, Fleet, FleetPlan, read_fleet, read_fleet_plan, write_fleet
from loadtests.fleet.run import MOST_TRIES, alive, begin, described, go_on, planned, unpack
from loadtests.plan.presets import make_plan
from loadtests.run.run_file import RunError
from tests.loadtests.fleet.fake_ray import FakeRay, RayError, RayTaskError, Told, brought, node
from tests.support.made_results import make_results

LOST = RayError("the node died. Look there")


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


def ray_of(results: Path, *nodes: str) -> FakeRay:
    """Nodes of kinds of their own names, on which every task begins and brings `results`."""
    return FakeRay(*(node(name, name) for name in nodes), script=lambda task, _: [task[0], brought(results)])


def test_every_task_comes_back_with_its_folder_whole(tmp_path: Path, results: Path) -> None:
    fleet = begin(ray_of(results, "a", "b"), plan_of(tmp_path), tmp_path / "out", silent)
    assert states(fleet) == {"a": "complete", "b": "complete"}
    assert read_fleet(tmp_path / "out") == fleet
    for task in fleet.tasks:
        rows = (tmp_path / "out" / task.name / "requests.jsonl").read_bytes()
        assert rows == (results / "requests.jsonl").read_bytes()
        assert [(one.address, one.sweep_seconds, one.said) for one in task.tries] == [
            (task.machine, 60.0, None)
        ]
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {FLEET_FILE, "plan.toml", *(task.name for task in fleet.tasks)}


def test_ray_is_told_the_kind_of_machine_all_its_cpus_and_how_often_to_try_again(
    tmp_path: Path, results: Path
) -> None:
    ray = FakeRay(
        node("a", "k", cpus=16, gpus=2),
        node("b", "k", cpus=16),
        script=lambda *_: ["a", brought(results)],
    )
    begin(ray, plan_of(tmp_path, 'machines = ["k"]\ndevices = ["cpu", "cuda"]'), tmp_path / "out", silent)
    asked = {"num_cpus": 16, "label_selector": {"launchbound-machine": "k"}, "max_retries": MOST_TRIES - 1}
    assert [options for _, options in ray.submitted] == [
        {**asked, "num_gpus": 0},
        {**asked, "num_gpus": 2},
    ]


def test_a_task_that_begins_again_has_lost_the_node_of_before(tmp_path: Path, results: Path) -> None:
    ray = FakeRay(node("a", "k"), node("b", "k"), script=lambda *_: ["a", "b", brought(results)])
    fleet = begin(ray, plan_of(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    (task,) = fleet.tasks
    assert task.state == "complete"
    assert [(one.address, one.said) for one in task.tries] == [("a", "its node was lost"), ("b", None)]
    assert len(ray.submitted) == 1


def test_it_waits_for_a_node_of_the_kind_but_not_for_ever(tmp_path: Path, results: Path) -> None:
    plan = plan_of(tmp_path, 'machines = ["k"]')
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
    (task,) = begin(ray, plan_of(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent).tasks
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
    ray = FakeRay(node("a", "k"), script=lambda *_: ["a", end])
    (task,) = begin(ray, plan_of(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent).tasks
    assert (task.state, task.said) == (state, said)
    assert len(ray.submitted) == 1


def test_a_sweep_whose_gate_failed_is_kept_and_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    plan = make_plan("quick", 1, ["eager", "inference_mode"], [1])
    invalid = make_results(tmp_path / "results", plan=plan, fail=1)
    ray = FakeRay(node("a", "k"), script=lambda *_: ["a", brought(invalid, exit_code=1)])
    fleet = begin(ray, plan_of(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    assert states(fleet) == {"k": "not valid"}
    with pytest.raises(RunError, match="nothing is left to run"):
        go_on(ray, tmp_path / "out", silent)


def test_a_sweep_without_results_has_failed_with_its_last_words_and_is_run_by_going_on(
    tmp_path: Path, results: Path
) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "sweep.log").write_text('launchbound: no such model\n{"valid": false}\n')

    def script(_: str, number: int) -> Sequence[Told]:
        return ["a", brought(tmp_path / "words", exit_code=2) if number == 0 else brought(results)]

    ray = FakeRay(node("a", "k"), script=script)
    (task,) = begin(ray, plan_of(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent).tasks
    assert (task.state, task.exit_code) == ("failed", 2)
    assert task.said == "the sweep ended with code 2: launchbound: no such model"
    assert states(go_on(ray, tmp_path / "out", silent)) == {"k": "complete"}


def test_a_kind_without_a_gpu_is_left_out_of_cuda_and_one_with_it_is_not(
    tmp_path: Path, results: Path
) -> None:
    ray = FakeRay(node("a", "a"), node("b", "b", gpus=1), script=lambda *_: ["b", brought(results)])
    plan = plan_of(tmp_path, 'machines = ["a", "b"]\ndevices = ["cuda"]')
    fleet = begin(ray, plan, tmp_path / "out", silent, wait_seconds=3600)
    assert states(fleet) == {"a": "left out", "b": "complete"}
    assert fleet.owed == []


def two_at_once(results: Path, *last: Told) -> FakeRay:
    """The task of `a` comes back, and that of `b` runs for ever, or tells `last`."""
    return FakeRay(
        node("a", "a"),
        node("b", "b"),
        script=lambda task, _: ["a", brought(results)] if task[0] == "a" else ["b", *last],
    )


def test_an_interruption_ends_what_runs_and_going_on_runs_only_the_rest(
    tmp_path: Path, results: Path
) -> None:
    ray = two_at_once(results)
    reports = list[str]()

    def interrupted(line: str) -> None:
        reports.append(line)
        if line.endswith(": complete"):
            ray.on_wait = raising(KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        begin(ray, plan_of(tmp_path), tmp_path / "out", interrupted)
    stopped = read_fleet(tmp_path / "out")
    assert states(stopped) == {"a": "complete", "b": "not begun"}
    assert (stopped.stopped_because, ray.cancelled) == ("interrupted", [1])
    with pytest.raises(RunError, match="holds a fleet already"):
        begin(ray, plan_of(tmp_path), tmp_path / "out", silent)
    again = ray_of(results, "b")
    finished = go_on(again, tmp_path / "out", silent)
    assert states(finished) == {"a": "complete", "b": "complete"}
    assert [task for task, _ in again.submitted] == ["b-cpu-float32-tiny"]
    assert finished.stopped_because is None


def test_an_interruption_while_a_folder_is_unpacked_is_kept_and_ends_the_rest(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "unpack", raising(KeyboardInterrupt()))
    ray = two_at_once(results)
    with pytest.raises(KeyboardInterrupt):
        begin(ray, plan_of(tmp_path), tmp_path / "out", silent)
    stopped = read_fleet(tmp_path / "out")
    assert (stopped.stopped_because, states(stopped)) == ("interrupted", {"a": "not begun", "b": "not begun"})
    assert 1 in ray.cancelled


def test_an_interruption_while_a_whole_folder_is_judged_keeps_it(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "measured_state", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        begin(two_at_once(results), plan_of(tmp_path), tmp_path / "out", silent)
    stopped = read_fleet(tmp_path / "out")
    assert (stopped.stopped_because, states(stopped)) == ("interrupted", {"a": "complete", "b": "not begun"})
    monkeypatch.undo()
    assert states(go_on(ray_of(results, "b"), tmp_path / "out", silent)) == {"a": "complete", "b": "complete"}


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


def test_a_folder_that_cannot_be_read_is_a_failed_task_and_the_others_go_on(
    tmp_path: Path, results: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    ray = FakeRay(
        node("a", "a"),
        node("b", "b"),
        script=lambda task, _: [task[0], brought(broken if task[0] == "a" else results)],
    )
    fleet = begin(ray, plan_of(tmp_path), tmp_path / "out", silent)
    assert states(fleet) == {"a": "failed", "b": "complete"}
    assert "run.json is broken" in (fleet.tasks[0].said or "")


def test_what_an_earlier_try_left_is_no_result_of_one_during_which_the_driver_was_killed(
    tmp_path: Path, results: Path
) -> None:
    ray = FakeRay(node("a", "k"), script=lambda *_: ["a", brought(results, exit_code=3)])
    fleet = begin(ray, plan_of(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    assert states(fleet) == {"k": "failed"}
    fleet.tasks[0].state, fleet.tasks[0].exit_code = "running", None
    write_fleet(tmp_path / "out", fleet)
    assert [task.name for task in read_fleet(tmp_path / "out").owed] == ["k-cpu-float32-tiny"]


def test_a_driver_that_was_killed_after_a_folder_had_come_keeps_it(tmp_path: Path, results: Path) -> None:
    fleet = begin(ray_of(results, "k"), plan_of(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    fleet.tasks[0].state = "running"
    write_fleet(tmp_path / "out", fleet)
    assert states(read_fleet(tmp_path / "out")) == {"k": "complete"}


def test_other_code_does_not_go_on_with_a_fleet(tmp_path: Path) -> None:
    ray = FakeRay(script=lambda *_: [])
    fleet = begin(ray, plan_of(tmp_path), tmp_path / "out", silent)
    fleet.code = msgspec.structs.replace(installed_code(), version="0.0.1")
    write_fleet(tmp_path / "out", fleet)
    with pytest.raises(RunError, match=r"begun with launchbound 0\.0\.1"):
        go_on(ray, tmp_path / "out", silent)


def test_a_dry_run_says_where_how_long_at_what_price_and_what_is_missing(tmp_path: Path) -> None:
    ray = FakeRay(node("a", "a"), node("h", None), script=lambda *_: [])
    plan = plan_of(tmp_path, 'machines = ["a", "b"]\n[prices]\na = 36')
    nodes = alive(ray)
    text = described(plan, planned(plan, nodes, None).tasks, nodes)
    assert "node h (hhhhhhhh) says no kind of machine" in text
    assert "a-cpu-float32-tiny" in text
    assert "on a (aaaaaaaa)" in text
    assert "CANNOT RUN NOW: there is no node of kind b" in text
    assert "at $36 per hour" in text


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


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "..", ".hidden", "a/b"])
def test_a_fleets_file_that_names_a_task_so_is_refused(name: str, tmp_path: Path) -> None:
    fleet = begin(FakeRay(script=lambda *_: []), plan_of(tmp_path), tmp_path / "out", silent)
    fleet.tasks[0].name = name
    write_fleet(tmp_path / "out", fleet)
    with pytest.raises(RunError, match=r"fleet\.json is broken"):
        go_on(FakeRay(script=lambda *_: []), tmp_path / "out", silent)


def raising(error: BaseException) -> Callable[..., Any]:
    def raises(*_: object, **__: object) -> None:
        raise error

    return raises
