"""What a fleet and its command do with tasks, on a Ray that is a few lines of Python, and what it reports."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import launchbound
from loadtests.compare.page import FLEET_PAGE_FILE, make_fleet_picture
from loadtests.compare.runs import LETTERS
from loadtests.fleet.run import (
    FLEET_FILE,
    LABEL,
    MOST_TASKS,
    MOST_TRIES,
    SWEEP_COMMAND,
    Fleet,
    FleetTask,
    Swept,
    alive,
    begin,
    go_on,
    installed_code,
    read_fleet,
    sweep_on_node,
    tasks_of,
    write_fleet,
)
from loadtests.plan.plan_file import toml_of
from loadtests.plan.presets import overridden, preset_documents
from loadtests.run.rows import RowsError
from loadtests.run.run_file import RunError
from service import ray_cluster
from service.cli.options import EXIT_INTERRUPTED, EXIT_MACHINE
from tests.support.made_plans import make_plan
from tests.support.made_results import ALIKE, CLEAR, make_results


class RayError(Exception):
    """A node has died, or something else of Ray's own."""


class RayTaskError(RayError):
    """What the code on a node raised, in `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"a long traceback\n{cause}")
        self.cause = cause


def node(name: str, kind: str | None, *, cpus: float = 2, gpus: float = 0) -> dict[str, Any]:
    return {
        "NodeID": name * 8,
        "NodeManagerAddress": name,
        "Labels": {} if kind is None else {LABEL: kind},
        "Resources": {"CPU": cpus, "GPU": gpus},
        "Alive": True,
    }


def swept(folder: Path, exit_code: int = 0) -> Swept:
    """What a sweep brings that wrote `folder`."""
    with TemporaryDirectory() as temporary:
        packed = Path(shutil.make_archive(f"{temporary}/packed", "zip", folder)).read_bytes()
    return Swept(exit_code=exit_code, node="n", niceness=0, folder=packed)


class FakeRay:
    """`end` of the options of a task says what it brings or raises; None: it runs for ever."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(
        self, *nodes: dict[str, Any], end: Callable[[Sequence[str]], Swept | BaseException | None]
    ) -> None:
        self.alive = list(nodes)
        self.submitted: list[dict[str, Any]] = []
        self.cancelled: list[int] = []
        self.on_wait: Callable[[], None] = lambda: None
        self._end = end
        self._ends: dict[int, Swept | BaseException | None] = {}

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.alive)

    def remote(self, function: Any) -> Any:
        return SimpleNamespace(
            options=lambda **options: SimpleNamespace(
                remote=lambda plan, arguments, code: self._submit(arguments, options)
            )
        )

    def _submit(self, arguments: Sequence[str], options: dict[str, Any]) -> int:
        number = len(self.submitted)
        self.submitted.append(options)
        self._ends[number] = self._end([options["label_selector"][LABEL], *arguments])
        return number

    def wait(self, refs: Sequence[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        self.on_wait()
        return [ref for ref in refs if self._ends[ref] is not None][:num_returns], []

    def get(self, ref: int) -> Any:
        end = self._ends[ref]
        if isinstance(end, BaseException):
            raise end
        return end

    def cancel(self, ref: int, force: bool) -> None:
        assert force
        self.cancelled.append(ref)


PLAN = toml_of(overridden(preset_documents("quick")[0], modes=["eager", "inference_mode"], batch_sizes=[1]))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = make_plan("quick", 1, ["eager", "inference_mode"], [1])
    return make_results(tmp_path_factory.mktemp("results"), plan=plan)


def fleet_of(ray: FakeRay) -> Fleet:
    tasks = tasks_of(alive(ray), ["tiny"], ["float32"])  # type: ignore[arg-type]
    return Fleet(started="", sweep=PLAN, code=installed_code(), tasks=tasks)


def states(folder: Path) -> dict[str, str]:
    return {task.machine: task.state for task in read_fleet(folder).tasks}


def silent(line: str) -> None:
    """A report that nobody reads."""


def test_every_task_comes_back_with_its_folder_whole(tmp_path: Path, results: Path) -> None:
    ray = FakeRay(node("a", "a"), node("b", "b"), node("h", None), end=lambda _: swept(results))
    fleet = fleet_of(ray)
    begin(ray, fleet, tmp_path, silent)
    assert states(tmp_path) == {"a": "complete", "b": "complete"}
    for task in fleet.tasks:
        rows = (tmp_path / task.name / "requests.jsonl").read_bytes()
        assert rows == (results / "requests.jsonl").read_bytes()
        assert (task.node, task.said) == ("n", None)
    assert {path.name for path in tmp_path.iterdir()} == {FLEET_FILE, *(task.name for task in fleet.tasks)}
    with pytest.raises(RunError, match="holds a fleet already"):
        begin(ray, fleet, tmp_path, silent)
    with pytest.raises(RunError, match="nothing is left to run"):
        go_on(ray, tmp_path, silent)


def test_ray_is_told_the_kind_of_machine_all_that_it_has_and_how_often_to_try_again(
    tmp_path: Path, results: Path
) -> None:
    nodes = node("a", "g", cpus=16, gpus=2), node("b", "k", cpus=8), node("c", "k", cpus=16)
    ray = FakeRay(*nodes, end=lambda _: swept(results))
    fleet = fleet_of(ray)
    begin(ray, fleet, tmp_path, silent)
    assert [task.device for task in fleet.tasks] == ["cuda", "cpu"]
    tries = {"max_retries": MOST_TRIES - 1}
    assert ray.submitted == [
        {"num_cpus": 16, "num_gpus": 2, "label_selector": {LABEL: "g"}, **tries},
        {"num_cpus": 8, "num_gpus": 0, "label_selector": {LABEL: "k"}, **tries},
    ]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (RayError("the node died. Look there"), "RayError: the node died"),
        (RayTaskError(RuntimeError("it has launchbound 0")), "it has launchbound 0"),
        ("sweep.log", "code 2: launchbound: no such"),
        ("run.json", "run.json is broken"),
    ],
)
def test_a_task_without_results_has_failed_with_its_reason_and_is_run_by_going_on(
    end: Exception | str, said: str, tmp_path: Path, results: Path
) -> None:
    contents = {"sweep.log": 'launchbound: no such model\n{"valid": false}\n', "run.json": "{"}
    first: Exception | Swept
    if isinstance(end, str):
        (tmp_path / "came").mkdir()
        (tmp_path / "came" / end).write_text(contents[end])
        first = swept(tmp_path / "came", 2 if end == "sweep.log" else 0)
    else:
        first = end
    ends = iter([first, swept(results)])
    ray, out = FakeRay(node("a", "k"), end=lambda _: next(ends)), tmp_path / "out"
    begin(ray, fleet_of(ray), out, silent)
    (task,) = read_fleet(out).tasks
    assert task.state == "failed"
    assert said in (task.said or "")
    go_on(ray, out, silent)
    assert states(out) == {"k": "complete"}


def test_a_sweep_whose_gate_failed_is_kept_and_not_run_again(tmp_path: Path) -> None:
    plan = make_plan("quick", 1, ["eager", "inference_mode"], [1])
    failed = swept(make_results(tmp_path / "results", plan=plan, fail=1), exit_code=1)
    ray = FakeRay(node("a", "k"), end=lambda _: failed)
    begin(ray, fleet_of(ray), tmp_path / "out", silent)
    assert states(tmp_path / "out") == {"k": "not valid"}
    with pytest.raises(RunError, match="nothing is left to run"):
        go_on(ray, tmp_path / "out", silent)


def test_an_interruption_ends_what_runs_going_on_runs_only_the_rest_and_says_what_it_waits_for(
    tmp_path: Path, results: Path
) -> None:
    ray = FakeRay(node("a", "a"), node("b", "b"), end=lambda told: swept(results) if told[0] == "a" else None)

    def interrupted() -> None:
        if ray.alive and states(tmp_path)["a"] == "complete":
            raise KeyboardInterrupt

    ray.on_wait = interrupted
    with pytest.raises(KeyboardInterrupt):
        begin(ray, fleet_of(ray), tmp_path, silent)
    assert states(tmp_path) == {"a": "complete", "b": "not begun"}
    assert ray.cancelled == [1]
    again, lines = FakeRay(end=lambda _: swept(results)), list[str]()
    go_on(again, tmp_path, lines.append)
    assert states(tmp_path) == {"a": "complete", "b": "complete"}
    assert [one["label_selector"] for one in again.submitted] == [{LABEL: "b"}]
    assert any("waits for a node of kind b; start one with `ray start" in line for line in lines)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "..", ".hidden", "a/b"])
def test_other_code_and_a_task_whose_name_leads_out_of_its_folder_are_not_gone_on_with(
    name: str, tmp_path: Path
) -> None:
    ray = FakeRay(node("a", "a"), end=lambda _: None)
    fleet = fleet_of(ray)
    fleet.code = f"0.0.1 {installed_code()}"
    write_fleet(tmp_path, fleet)
    with pytest.raises(RunError, match=r"begun with launchbound 0\.0\.1"):
        go_on(ray, tmp_path, silent)
    fleet.tasks[0].name = name
    write_fleet(tmp_path, fleet)
    with pytest.raises(RunError, match=r"fleet\.json is broken"):
        go_on(ray, tmp_path, silent)


def test_no_result_is_written_under_a_name_that_leads_out_of_its_folder(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in ("../evil", "/evil", "a/../../evil", "sweep.log"):
            archive.writestr(name, name)
    brought = Swept(exit_code=2, node="n", niceness=0, folder=data.getvalue())
    ray = FakeRay(node("a", "k"), end=lambda _: brought)
    begin(ray, fleet_of(ray), tmp_path / "out", silent)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {FLEET_FILE, "k-cpu-float32-tiny"}


# ---------------------------------------------------------------- the command


def by_command(ray: FakeRay, *arguments: str) -> Result:
    @contextmanager
    def connected(*_: Any) -> Iterator[FakeRay]:
        yield ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_cluster, "connected", connected)
        patch.setattr(ray_cluster, "environment", lambda _: {})
        return CliRunner().invoke(launchbound.app, ["fleet", *arguments])


def test_a_dry_run_says_what_would_run() -> None:
    ray = FakeRay(node("a", "a"), node("b", "b"), end=lambda _: None)
    shown = by_command(ray, "--dry-run", "--dtypes=float32,bfloat16")
    assert shown.exit_code == 0, shown.output
    assert "4 tasks, each this sweep" in shown.output
    assert "a-cpu-bfloat16-tiny" in shown.output
    assert "preset quick" in shown.output
    assert not ray.submitted


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (["--dtypes=int4"], "no precision int4: try one of float32"),
        (["--models=models/mine"], "absolute path of a folder that every node has"),
        (["--models=hf:./mine"], "`hf:./mine` is a relative path"),
        (["--models=hf:a/b,hf:a-b"], "1 tasks: at most 26, each once"),
        (["--models=" + ",".join(f"/m{number}" for number in range(MOST_TASKS + 1))], "27 tasks"),
        (["--resume=none", "--preset=quick"], "leave out all but --address"),
        (["--resume=none"], "none is no fleet"),
    ],
)
def test_what_makes_no_fleet_is_refused_with_the_remedy(options: list[str], refusal: str) -> None:
    found = by_command(FakeRay(node("a", "a"), end=lambda _: None), *options)
    assert found.exit_code == 2
    assert refusal in found.stderr
    assert len(LETTERS) == MOST_TASKS
    found = by_command(FakeRay(node("a", None), end=lambda _: None))
    assert (found.exit_code, f"--labels {LABEL}=KIND" in found.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "last", "code", "said"),
    [
        (KeyboardInterrupt(), "b", EXIT_INTERRUPTED, "interrupted"),
        (KeyboardInterrupt(), "a", EXIT_INTERRUPTED, "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device"), "b", EXIT_MACHINE, "no space left for"),
    ],
    ids=["interrupted", "interrupted at the first", "disk full"],
)
def test_a_command_that_is_stopped_says_how_to_go_on_and_reports_what_has_finished(
    error: BaseException, last: str, code: int, said: str, tmp_path: Path, results: Path
) -> None:
    ray = FakeRay(
        node("a", "a"), node("b", "b"), end=lambda told: error if told[0] == last else swept(results)
    )
    ended = by_command(ray, f"--out={tmp_path}")
    assert ended.exit_code == code, ended.output
    assert said in ended.output
    assert f"launchbound fleet --resume {tmp_path}" in ended.output
    assert (tmp_path / FLEET_PAGE_FILE).is_file() == (last == "b" and code == EXIT_INTERRUPTED)
    assert states(tmp_path) == {"a": "not begun" if last == "a" else "complete", "b": "not begun"}


# ---------------------------------------------------------------- what runs on a node

OPTIONS = ["--model=tiny", "--device=cpu", "--dtype=float32"]


def test_other_code_than_the_drivers_runs_nothing() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    with pytest.raises(RuntimeError, match=r"this command is 0\.0\.1.*install the same on both"):
        sweep_on_node(PLAN, OPTIONS, f"0.0.1 {installed_code()}")


def test_a_sweep_has_the_variables_of_before_ray_and_not_rays_own() -> None:
    code = (
        "import os; os.environ['OMP_NUM_THREADS'] = '7'; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
        "from loadtests.fleet.run import environment_before_ray as before\n"
        "print([before().get(n) for n in ('OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES', 'RAY_JOB_ID', 'OURS')])"
    )
    environment = {**os.environ, "RAY_JOB_ID": "1", "OURS": "a=b"}
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[None, None, None, 'a=b']"


def test_the_command_line_of_a_node_is_one_that_sweep_takes(tmp_path: Path) -> None:
    assert SWEEP_COMMAND[:2] == ("-m", "launchbound")
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    arguments = [*SWEEP_COMMAND[2:], *OPTIONS, f"--plan={plan}", f"--out={tmp_path}", "--dry-run"]
    done = CliRunner().invoke(launchbound.app, arguments)
    assert done.exit_code == 0, done.output
    assert "inference_mode b=1" in done.output


# ---------------------------------------------------------------- reports

MEASURED = make_plan("quick", 1, ["eager", "inference_mode", "compiled"], [1, 4])
TWICE = {mode: 0.5 * value for mode, value in CLEAR.items()}


def task(machine: str, model: str = "tiny", **options: Any) -> FleetTask:
    name = f"{machine}-{model}"
    return FleetTask(
        **{"state": "complete", **options},
        name=name, machine=machine, device="cpu", dtype="float32", model=model, niceness=0,
    )  # fmt: skip


def fleet_in(folder: Path, *tasks: FleetTask) -> Path:
    write_fleet(folder, Fleet(started="", sweep="", code=installed_code(), tasks=list(tasks)))
    return folder


def measured(folder: Path, found: FleetTask, relative: dict[str, float] = CLEAR, **options: Any) -> FleetTask:
    """The task, which has its results."""
    make_results(folder / found.name, relative, plan=MEASURED, **options)
    return found


def test_the_first_sentence_says_which_machine_and_which_mode_after_what_is_not_there(tmp_path: Path) -> None:
    """Of a machine twice as fast as the other, and one that could not run."""
    slow = measured(tmp_path, task("slow"), seed=3)
    fast = measured(tmp_path, task("fast"), TWICE, seed=4)
    gone = task("gone", state="failed", said="its node died")
    found = make_fleet_picture(fleet_in(tmp_path, slow, fast, gone))
    assert found["headline"] == (
        "NOT MEASURED: gone-tiny. Lowest latency: B (fast) with compiled at batch 1 and batch 4."
    )
    assert [run["run"] for run in found["groups"]["tiny"][0]["runs"]] == ["B", "A"]
    for name in (FLEET_PAGE_FILE, "fleet.md"):
        text = (tmp_path / name).read_text()
        assert all(shown in text for shown in (found["headline"], "its node died", "(slow)"))


def test_a_machine_whose_sweep_is_not_valid_is_said_first_and_wins_nothing(tmp_path: Path) -> None:
    bad = measured(tmp_path, task("bad", state="not valid"), TWICE, fail=1)
    good = measured(tmp_path, task("good"))
    found = make_fleet_picture(fleet_in(tmp_path, bad, good))
    assert found["headline"].startswith("NOT VALID: A (bad). One run alone: B (good) with compiled at ")
    done = CliRunner().invoke(launchbound.app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert found["headline"] in done.stdout
    headline = make_fleet_picture(fleet_in(tmp_path, bad))["headline"]
    assert headline == "NOT VALID: A (bad). No run is valid: none can be named."


def test_models_are_not_compared_with_each_other(tmp_path: Path) -> None:
    tiny, small = (measured(tmp_path, task("m", model)) for model in ("tiny", "small"))
    found = make_fleet_picture(fleet_in(tmp_path, tiny, small))
    alone = "{0}: One run alone: {1} (m, {0}) with compiled at batch 1 and batch 4."
    assert found["headline"] == f"{alone.format('tiny', 'A')} {alone.format('small', 'B')}"
    assert list(found["groups"]) == ["tiny", "small"]
    assert "small: Side by side" in (tmp_path / FLEET_PAGE_FILE).read_text()


def test_a_lone_run_whose_answer_is_not_resolved_says_so(tmp_path: Path) -> None:
    loose = measured(tmp_path, task("loose"), ALIKE, scatter=0.1)
    assert ", not resolved, at batch 1" in make_fleet_picture(fleet_in(tmp_path, loose))["headline"]


def test_a_fleet_of_which_nothing_is_measured_says_what_its_tasks_said(tmp_path: Path) -> None:
    gone = task("gone", state="failed", said="no such model")
    with pytest.raises(RowsError, match="gone-tiny: failed; no such model"):
        make_fleet_picture(fleet_in(tmp_path, gone))
