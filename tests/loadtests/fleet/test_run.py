"""What a fleet does with its tasks, on a cluster that runs nothing: places, retries, states, going on."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtests.fleet import run
from loadtests.fleet.arrival import Arrival
from loadtests.fleet.cluster import NodeLost, Unusable
from loadtests.fleet.messages import Refused, Started
from loadtests.fleet.node import installed_code
from loadtests.fleet.plan import FleetPlan, read_fleet_plan
from loadtests.fleet.record import FLEET_FILE, Fleet, new_fleet, read_fleet, write_fleet
from loadtests.fleet.run import MOST_TRIES, FleetRun
from loadtests.fleet.session import begin, go_on, show
from loadtests.plan.presets import make_plan
from loadtests.run.run_file import RunError
from tests.support.fake_cluster import FakeCluster, Script, brought, facts, node
from tests.support.made_results import make_results

LOST = NodeLost("the node died")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = make_plan("quick", 1, ["eager", "inference_mode"], [1])
    return make_results(tmp_path_factory.mktemp("results"), plan=plan)


def planned(folder: Path, text: str = 'machines = ["a", "b"]') -> FleetPlan:
    path = folder / "plan.toml"
    path.write_text(f'name = "which"\n{text}\n')
    return read_fleet_plan(path)


def states(fleet: Fleet) -> dict[str, str]:
    return {task.machine: task.state for task in fleet.tasks}


def silent(line: str) -> None:
    """A report that nobody reads."""


def test_every_task_comes_back_with_its_folder_whole(tmp_path: Path, results: Path) -> None:
    cluster = FakeCluster(node("a", "a"), node("b", "b"), script=lambda *_: brought(results))
    fleet = begin(cluster, planned(tmp_path), tmp_path / "out", silent)
    assert states(fleet) == {"a": "complete", "b": "complete"}
    assert read_fleet(tmp_path / "out") == fleet
    for task in fleet.tasks:
        rows = (tmp_path / "out" / task.name / "requests.jsonl").read_bytes()
        assert rows == (results / "requests.jsonl").read_bytes()
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {FLEET_FILE, "plan.toml", *(task.name for task in fleet.tasks)}


def test_what_of_a_task_is_not_its_sweep_is_the_control_plane(tmp_path: Path, results: Path) -> None:
    script = brought(results, seconds=3.0)
    cluster = FakeCluster(node("a", "a"), script=lambda *_: script)
    plan = planned(tmp_path, 'machines = ["a"]')
    fleet = new_fleet(plan, plan.tasks([]), installed_code(), None)
    FleetRun(cluster, fleet, tmp_path, silent, clock=lambda: cluster.seconds).run()
    # Each event is waited for one of its seconds.
    assert fleet.tasks[0].control_seconds == len(script) - 3.0


def test_machines_are_shared_by_no_two_tasks_even_where_they_are_several_nodes(
    tmp_path: Path, results: Path
) -> None:
    apart = FakeCluster(node("a", "a"), node("b", "b"), script=lambda *_: brought(results))
    begin(apart, planned(tmp_path), tmp_path / "apart", silent)
    assert apart.most_at_once == 2
    together = FakeCluster(node("a", "a"), node("b", "b"), script=lambda *_: brought(results))
    together.machines = {"a": "one", "b": "one"}
    begin(together, planned(tmp_path), tmp_path / "together", silent)
    assert together.most_at_once == 1


def test_a_lost_task_is_run_again_on_another_node_of_its_kind(tmp_path: Path, results: Path) -> None:
    def script(_: object, number: int) -> Script:
        return [Started(facts=facts("")), LOST] if number == 0 else brought(results)

    cluster = FakeCluster(node("a", "k"), node("b", "k"), script=script)
    fleet = begin(cluster, planned(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    (task,) = fleet.tasks
    assert task.state == "complete"
    assert [one.said for one in task.tries] == ["the node died", None]
    assert len({one.node for one in task.tries}) == 2


def test_it_waits_for_a_node_of_the_kind_but_not_for_ever(tmp_path: Path, results: Path) -> None:
    def script(_: object, number: int) -> Script:
        return [LOST] if number == 0 else brought(results)

    cluster = FakeCluster(node("a", "k"), script=script)

    def joins() -> None:
        if not cluster.alive:
            cluster.alive.append(node("c", "k"))

    cluster.on_wait = joins
    plan = planned(tmp_path, 'machines = ["k"]')
    fleet = begin(cluster, plan, tmp_path / "out", silent, wait_seconds=3600)
    assert states(fleet) == {"k": "complete"}
    lines: list[str] = []
    none = begin(FakeCluster(script=script), plan, tmp_path / "none", lines.append)
    (task,) = none.tasks
    assert (task.state, task.tries) == ("not begun", [])
    assert task.said is not None
    assert "--labels launchbound-machine=k" in task.said
    assert any("waiting for 0 s" in line for line in lines)


def test_nodes_that_go_on_dying_are_given_up(tmp_path: Path) -> None:
    class Reborn(FakeCluster):
        def nodes(self) -> list[object]:  # type: ignore[override]
            return [node(f"n{len(self.submitted)}", "k")]

    cluster = Reborn(script=lambda *_: [LOST])
    fleet = begin(cluster, planned(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    assert states(fleet) == {"k": "lost"}
    assert len(cluster.submitted) == MOST_TRIES


def test_a_sweep_whose_gate_failed_is_kept_and_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    plan = make_plan("quick", 1, ["eager", "inference_mode"], [1])
    invalid = make_results(tmp_path / "results", plan=plan, fail=1)
    cluster = FakeCluster(node("a", "k"), script=lambda *_: brought(invalid, exit_code=1))
    fleet = begin(cluster, planned(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    assert states(fleet) == {"k": "not valid"}
    assert len(cluster.submitted) == 1
    with pytest.raises(RunError, match="nothing is left to run"):
        go_on(cluster, tmp_path / "out", silent)


def test_a_sweep_without_results_has_failed_with_its_last_words_and_is_run_by_going_on(
    tmp_path: Path, results: Path
) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "sweep.log").write_text('launchbound: no such model\n{"valid": false}\n')

    def script(_: object, number: int) -> Script:
        return brought(tmp_path / "words", exit_code=2) if number == 0 else brought(results)

    cluster = FakeCluster(node("a", "k"), script=script)
    fleet = begin(cluster, planned(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    (task,) = fleet.tasks
    assert (task.state, task.exit_code) == ("failed", 2)
    assert task.said == "the sweep ended with code 2: launchbound: no such model"
    assert states(go_on(cluster, tmp_path / "out", silent)) == {"k": "complete"}


@pytest.mark.parametrize("told", [Refused(said="other code"), Unusable("other code")])
def test_what_a_node_refuses_does_not_go_to_another(tmp_path: Path, told: Refused | Unusable) -> None:
    cluster = FakeCluster(node("a", "k"), node("b", "k"), script=lambda *_: [told])
    fleet = begin(cluster, planned(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    assert [(task.state, task.said) for task in fleet.tasks] == [("failed", "other code")]
    assert len(cluster.submitted) == 1
    assert not list((tmp_path / "out").glob(".*"))


def test_a_node_with_other_code_is_not_used_and_says_what_to_install(tmp_path: Path) -> None:
    cluster = FakeCluster(node("a", "k"), script=lambda *_: [])
    other = msgspec.structs.replace(installed_code(), commit="fedcba987654")
    cluster.facts["a"] = msgspec.structs.replace(facts("a"), code=other)
    lines: list[str] = []
    fleet = begin(cluster, planned(tmp_path, 'machines = ["k"]'), tmp_path / "out", lines.append)
    assert cluster.submitted == []
    assert states(fleet) == {"k": "not begun"}
    assert "fedcba987654" in lines[0]
    assert "install the same on both" in lines[0]


def test_a_kind_without_a_gpu_is_left_out_of_cuda_and_one_with_it_is_not(
    tmp_path: Path, results: Path
) -> None:
    cluster = FakeCluster(node("a", "a"), node("b", "b", gpus=1), script=lambda *_: brought(results))
    plan = planned(tmp_path, 'machines = ["a", "b"]\ndevices = ["cuda"]')
    fleet = begin(cluster, plan, tmp_path / "out", silent, wait_seconds=3600)
    assert states(fleet) == {"a": "left out", "b": "complete"}
    assert fleet.owed == []


def test_an_interruption_ends_what_runs_and_going_on_runs_only_the_rest(
    tmp_path: Path, results: Path
) -> None:
    def script(_: object, number: int) -> Script:
        return brought(results) if number != 1 else [KeyboardInterrupt()]

    cluster = FakeCluster(node("a", "a"), node("b", "b"), script=script)
    cluster.machines = {"a": "one", "b": "one"}
    with pytest.raises(KeyboardInterrupt):
        begin(cluster, planned(tmp_path), tmp_path / "out", silent)
    stopped = read_fleet(tmp_path / "out")
    assert states(stopped) == {"a": "complete", "b": "not begun"}
    assert stopped.stopped_because == "interrupted"
    with pytest.raises(RunError, match="holds a fleet already"):
        begin(cluster, planned(tmp_path), tmp_path / "out", silent)
    finished = go_on(cluster, tmp_path / "out", silent)
    assert states(finished) == {"a": "complete", "b": "complete"}
    assert [one.address for one, _ in cluster.submitted] == ["a", "b", "b"]
    assert finished.stopped_because is None


def two_at_once(results: Path) -> FakeCluster:
    """The task of `a` comes back, and that of `b` runs for ever."""
    endless: Script = [Started(facts=facts(""))] * 1000
    return FakeCluster(
        node("a", "a"),
        node("b", "b"),
        script=lambda on, _: brought(results) if on.address == "a" else list(endless),
    )


def test_an_interruption_while_a_folder_is_unpacked_is_kept_and_ends_the_rest(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Arrival, "unpack", raising(KeyboardInterrupt()))
    cluster = two_at_once(results)
    with pytest.raises(KeyboardInterrupt):
        begin(cluster, planned(tmp_path), tmp_path / "out", silent)
    stopped = read_fleet(tmp_path / "out")
    assert (stopped.stopped_because, states(stopped)) == ("interrupted", {"a": "not begun", "b": "not begun"})
    assert [task.tries[0].said for task in stopped.tasks] == ["interrupted", "interrupted"]
    assert cluster.running == {}
    assert cluster.cancelled == [1], "the task of `a` had ended on its node"
    assert not list((tmp_path / "out").glob(".*.zip"))


def test_an_interruption_while_a_whole_folder_is_judged_keeps_it(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "measured_state", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        begin(two_at_once(results), planned(tmp_path), tmp_path / "out", silent)
    stopped = read_fleet(tmp_path / "out")
    assert (stopped.stopped_because, states(stopped)) == ("interrupted", {"a": "complete", "b": "not begun"})
    monkeypatch.undo()
    again = FakeCluster(node("b", "b"), script=lambda *_: brought(results))
    assert states(go_on(again, tmp_path / "out", silent)) == {"a": "complete", "b": "complete"}


def test_one_that_cannot_be_ended_leaves_no_other_running_and_all_is_kept(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Arrival, "unpack", raising(OSError(errno.ENOSPC, "no space left")))
    cluster = two_at_once(results)
    cluster.alive.insert(1, node("c", "c"))
    cancel = cluster.cancel

    def cancelled(handle: int) -> None:
        if cluster.submitted[handle][0].address == "c":
            raise ValueError("the stream is gone")
        cancel(handle)

    monkeypatch.setattr(cluster, "cancel", cancelled)
    lines: list[str] = []
    plan = planned(tmp_path, 'machines = ["a", "c", "b"]')
    with pytest.raises(OSError, match="no space left"):
        begin(cluster, plan, tmp_path / "out", lines.append)
    assert cluster.cancelled == [2]
    assert any(line.startswith("c-cpu-float32-tiny: could not be ended") for line in lines)
    stopped = read_fleet(tmp_path / "out")
    assert stopped.stopped_because is not None
    assert "no space left" in stopped.stopped_because
    assert set(states(stopped).values()) == {"not begun"}


def test_a_folder_that_cannot_be_read_is_a_failed_task_and_the_others_go_on(
    tmp_path: Path, results: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    cluster = FakeCluster(
        node("a", "a"), node("b", "b"), script=lambda on, _: brought(broken if on.address == "a" else results)
    )
    fleet = begin(cluster, planned(tmp_path), tmp_path / "out", silent)
    assert states(fleet) == {"a": "failed", "b": "complete"}
    assert "run.json is broken" in (fleet.tasks[0].said or "")


def test_what_an_earlier_try_left_is_no_result_of_one_during_which_the_driver_was_killed(
    tmp_path: Path, results: Path
) -> None:
    def full(*_: object) -> Script:
        return brought(results, exit_code=3)

    cluster = FakeCluster(node("a", "k"), script=full)
    fleet = begin(cluster, planned(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    assert states(fleet) == {"k": "failed"}
    fleet.tasks[0].state, fleet.tasks[0].exit_code = "running", None
    write_fleet(tmp_path / "out", fleet)
    assert [task.name for task in read_fleet(tmp_path / "out").owed] == ["k-cpu-float32-tiny"]


def raising(error: BaseException) -> Callable[..., Any]:
    def raises(*_: object) -> None:
        raise error

    return raises


def test_a_driver_that_was_killed_after_a_folder_had_come_keeps_it(tmp_path: Path, results: Path) -> None:
    cluster = FakeCluster(node("a", "k"), script=lambda *_: brought(results))
    fleet = begin(cluster, planned(tmp_path, 'machines = ["k"]'), tmp_path / "out", silent)
    fleet.tasks[0].state = "running"
    (tmp_path / "out" / FLEET_FILE).write_bytes(msgspec.json.encode(fleet))
    assert states(read_fleet(tmp_path / "out")) == {"k": "complete"}


def test_other_code_does_not_go_on_with_a_fleet(tmp_path: Path) -> None:
    cluster = FakeCluster(script=lambda *_: [])
    fleet = begin(cluster, planned(tmp_path), tmp_path / "out", silent)
    fleet.code = msgspec.structs.replace(fleet.code, version="0.0.1")
    (tmp_path / "out" / FLEET_FILE).write_bytes(msgspec.json.encode(fleet))
    with pytest.raises(RunError, match=r"begun with launchbound 0\.0\.1"):
        go_on(cluster, tmp_path / "out", silent)


def test_a_dry_run_says_where_how_long_at_what_price_and_what_is_missing(tmp_path: Path) -> None:
    cluster = FakeCluster(node("a", "a"), node("h", None), script=lambda *_: [])
    lines: list[str] = []
    show(cluster, planned(tmp_path, 'machines = ["a", "b"]\n[prices]\na = 36'), lines.append)
    text = "\n".join(lines)
    assert "node h (hhhhhhhh) says no kind of machine" in text
    assert "a-cpu-float32-tiny" in text
    assert "on a (aaaaaaaa)" in text
    assert "CANNOT RUN NOW: there is no node of kind b" in text
    assert "at $36 per hour" in text
    assert cluster.submitted == []
