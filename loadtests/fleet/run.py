"""A fleet: `launchbound sweep` on a node of each kind of machine of a Ray cluster, again where a node dies.

`fleet.json` says how far each task has come, and where it ran.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import msgspec

from loadtests.plan.cells import PlanError
from loadtests.plan.plan_file import DTYPES
from loadtests.run.folder import git_state, locked, now
from loadtests.run.gates import check_rows
from loadtests.run.rows import RowsError
from loadtests.run.run_file import PLAN_FILE, RUN_FILE, DocumentFile, RunError, read_run
from models.config import CONFIGS
from service.parent_death import owned
from service.records import METHOD

FLEET_FILE = "fleet.json"
LABEL = "launchbound-machine"
"""A node's label in Ray, whose value is its kind of machine."""

LOCAL_KIND = "local"
"""The kind of the one node that the command starts itself."""

SWEEP_COMMAND = ("-m", "launchbound", "sweep")
"""Run by the node's own Python, with the options of a task behind it."""

SWEEP_LOG = "sweep.log"
"""What the sweep has printed, in its folder."""

MOST_TASKS = 26
"""A report letters its runs."""

MOST_TRIES = 3
"""So many nodes may be lost under a task before it is given up."""

POLL_SECONDS = 1.0

State = Literal["not begun", "running", "complete", "not valid", "failed"]
"""`complete` and `not valid` (a gate failed) are final. `failed`: the sweep, or its node, left no results."""

MEASURED: tuple[State, ...] = ("complete", "not valid")
Report = Callable[[str], None]
Node = dict[str, Any]
"""As Ray lists it."""


class FleetTask(msgspec.Struct, kw_only=True):
    """The fleet's sweep on one kind of machine; its results are in the folder of its name.

    `said` is why it has no results. The last two are of the try that brought the results: the node's address,
    and the niceness of its processes, above 0 where anything else on that machine runs first.
    """

    # Also the name of a folder: nothing in it leads elsewhere.
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    machine: str
    device: str
    dtype: str
    model: str
    state: State = "not begun"
    said: str | None = None
    node: str | None = None
    niceness: int | None = None


class Fleet(msgspec.Struct, kw_only=True):
    """A fleet. `sweep` is the plan file of every task, `code` the launchbound of the command.

    `address` of the cluster; None: one of its own, on this machine.
    """

    format_version: int = 3
    started: str
    ended: str | None = None
    sweep: str
    code: str
    address: str | None = None
    tasks: list[FleetTask]


_FILE = DocumentFile(FLEET_FILE, Fleet, 3, "fleet", "launchbound fleet", "report its folders by `report A B`")
is_fleet, write_fleet, read_fleet = _FILE.is_in, _FILE.write, _FILE.read
"""Whether a folder holds the results of a fleet; write its `fleet.json` atomically; and read it, which raises
RunError where it is missing, broken or of another format.
"""


def alive(ray: ModuleType, kind: str | None = None) -> list[Node]:
    """The nodes of the cluster that run tasks and say what kind of machine they are: `kind`, None: any."""
    kinds = ((node, node["Labels"].get(LABEL)) for node in ray.nodes() if node["Alive"])
    return [node for node, own in kinds if own and kind in (own, None) and _offers(node, "CPU")]


def _offers(node: Node, what: str) -> float:
    return float(node["Resources"].get(what, 0.0))


def tasks_of(nodes: Sequence[Node], models: Sequence[str], dtypes: Sequence[str]) -> list[FleetTask]:
    """One per kind of machine that `nodes` are, precision and model; on its GPUs where a kind has some.

    Raises PlanError for what no fleet can be.
    """
    kinds = sorted({node["Labels"][LABEL] for node in nodes})
    if not kinds:
        raise PlanError(
            "no node of the cluster says what kind of machine it is: start each with "
            f"`ray start … --labels {LABEL}=KIND`"
        )
    if strange := set(dtypes) - set(DTYPES):
        raise PlanError(f"no precision {', '.join(sorted(strange))}: try one of {', '.join(DTYPES)}")
    for model in models:
        if not (model in CONFIGS or re.match(r"(hf:)?/|hf:\w", model)):
            raise PlanError(
                f"`{model}` is a relative path, and nodes run elsewhere: name one of {', '.join(CONFIGS)}, "
                "hf:HUB-ID, or the absolute path of a folder that every node has"
            )
    with_gpu = {node["Labels"][LABEL] for node in nodes if _offers(node, "GPU")}
    found = {}
    for machine, dtype, model in product(kinds, dtypes, models):
        device = "cuda" if machine in with_gpu else "cpu"
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{machine}-{device}-{dtype}-{model}")
        found[name] = FleetTask(name=name, machine=machine, device=device, dtype=dtype, model=model)
    if not len(kinds) * len(dtypes) * len(models) == len(found) <= MOST_TASKS:
        raise PlanError(f"{len(found)} tasks: at most {MOST_TASKS}, each once; name fewer models or dtypes")
    return list(found.values())


class Swept(msgspec.Struct, kw_only=True, frozen=True):
    """What a sweep has left: its folder as a zip file."""

    exit_code: int
    node: str
    niceness: int
    folder: bytes


def sweep_on_node(plan: str, arguments: Sequence[str], code: str) -> Swept:
    """Sweep the text of a `plan` by a command with these `arguments`, once no other one runs on this machine.

    Raises RuntimeError where this launchbound is not the driver's, which `code` is.
    """
    import ray

    if (own := installed_code()) != code:
        raise RuntimeError(f"it has launchbound {own}, this command is {code}: install the same on both")
    lock_file = Path(tempfile.gettempdir(), f"launchbound-fleet-{os.getuid()}.lock")
    with lock_file.open("a") as lock, tempfile.TemporaryDirectory(prefix="launchbound-fleet-") as name:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plan_file, results = Path(name, PLAN_FILE), Path(name, "results")
        results.mkdir()
        plan_file.write_text(plan, encoding="utf-8")
        command = [sys.executable, *arguments, f"--plan={plan_file}", f"--out={results}"]
        with (results / SWEEP_LOG).open("wb") as log:
            done = subprocess.run(
                owned(command, signal.SIGKILL),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=name,
                env=environment_before_ray(),
                pass_fds=[lock.fileno()],  # locked until the sweep has ended too
                check=False,
            )
        return Swept(
            exit_code=done.returncode,
            node=ray.util.get_node_ip_address(),
            niceness=os.nice(0),
            folder=Path(shutil.make_archive(f"{name}/packed", "zip", results)).read_bytes(),
        )


def installed_code() -> str:
    """What makes two installations of launchbound the same: version, commit, changes and method."""
    state = git_state()
    changed = f" with changes {state['changes']}" if state["changes"] else ""
    return f"{version('launchbound')}, commit {state['commit'] or 'unknown'}{changed}, method {METHOD}"


def environment_before_ray() -> dict[str, str]:
    """The variables with which this process was started, as `ray start` had them.

    Ray sets OMP_NUM_THREADS and CUDA_VISIBLE_DEVICES inside its workers: a sweep would measure with these.
    """
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs if not name.startswith(("RAY_", "SPT_NOENV"))}


def begin(
    ray: ModuleType, fleet: Fleet, folder: Path, report: Report, command: Sequence[str] = SWEEP_COMMAND
) -> None:
    """Run all tasks of `fleet` on the cluster that `ray` is connected to, into `folder`, which is created.

    `report` is given each change. Raises RunError where `folder` holds a fleet already or is in use, and
    KeyboardInterrupt, with what has finished kept.
    """
    if is_fleet(folder):
        raise RunError(
            f"{folder} holds a fleet already: name a new folder, or go on with it by --resume {folder}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        FleetRun(ray, fleet, folder, report, command).run()


def go_on(ray: ModuleType, folder: Path, report: Report) -> None:
    """Run the tasks of the fleet in `folder` that have no results, those that failed too; else as `begin`.

    Raises RunError where all have, and where this is not the code that the fleet began with.
    """
    with locked(folder):
        fleet = read_fleet(folder)
        if all(task.state in MEASURED for task in fleet.tasks):
            raise RunError(f"nothing is left to run in {folder}: `launchbound report {folder}` reports it")
        if (code := installed_code()) != fleet.code:
            raise RunError(
                f"the fleet in {folder} was begun with launchbound {fleet.code}, this is {code}: go on with "
                "that one, or begin a new fleet"
            )
        FleetRun(ray, fleet, folder, report, SWEEP_COMMAND).run()


class FleetRun:
    """Runs what `fleet` has no results of into `folder`, whose `fleet.json` follows every change."""

    def __init__(
        self, ray: ModuleType, fleet: Fleet, folder: Path, report: Report, command: Sequence[str]
    ) -> None:
        self._ray, self._fleet, self._folder, self._report = ray, fleet, folder, report
        self._command, self._running, self._waiting = command, dict[Any, FleetTask](), set[str]()

    def run(self) -> None:
        """Until every task has ended. KeyboardInterrupt ends what runs, and is raised."""
        self._fleet.ended = None
        try:
            for task in self._fleet.tasks:
                if task.state not in MEASURED:
                    self._submit(task)
            while self._running:
                self._report_missing_nodes()
                ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=POLL_SECONDS)
                for ref in ready:
                    self._note(self._running[ref], *self._outcome(self._running[ref], ref))
                    del self._running[ref]
        finally:
            for ref, task in self._running.items():
                task.state = "not begun"
                self._ray.cancel(ref, force=True)
            self._fleet.ended = now()
            write_fleet(self._folder, self._fleet)

    def _submit(self, task: FleetTask) -> None:
        """All CPUs and GPUs of a node of its kind, so that no other task is there."""
        nodes = alive(self._ray, task.machine)
        sweep = self._ray.remote(sweep_on_node).options(
            num_cpus=min((_offers(node, "CPU") for node in nodes), default=1),
            num_gpus=min((_offers(node, "GPU") for node in nodes), default=int(task.device == "cuda")),
            label_selector={LABEL: task.machine},
            max_retries=MOST_TRIES - 1,
        )
        options = [f"--model={task.model}", f"--device={task.device}", f"--dtype={task.dtype}"]
        ref = sweep.remote(self._fleet.sweep, [*self._command, *options], self._fleet.code)
        self._running[ref] = task
        self._note(task, "running", None)

    def _report_missing_nodes(self) -> None:
        """Ray waits for a node of a kind that has none: say so once."""
        for task in self._running.values():
            if task.name not in self._waiting and not alive(self._ray, task.machine):
                self._waiting.add(task.name)
                start = f"`ray start --address=HEAD --labels {LABEL}={task.machine}`"
                self._report(f"{task.name}: waits for a node of kind {task.machine}; start one with {start}")

    def _outcome(self, task: FleetTask, ref: Any) -> tuple[State, str | None]:  # noqa: ANN401 - of Ray
        """The state of a task that has ended, whose folder is unpacked here, and why it has no results."""
        try:
            swept: Swept = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            return "failed", str(error.cause or error).strip().rpartition("\n")[2]
        except self._ray.exceptions.RayError as error:
            return "failed", f"{type(error).__name__}: {str(error).partition('. ')[0]}"
        task.node, task.niceness = swept.node, swept.niceness
        folder = self._folder / task.name
        shutil.rmtree(folder, ignore_errors=True)
        with zipfile.ZipFile(io.BytesIO(swept.folder)) as archive:
            archive.extractall(folder)  # keeps within the folder, whatever names there are
        if swept.exit_code not in (0, 1) or not (folder / RUN_FILE).is_file():
            return "failed", f"the sweep ended with code {swept.exit_code}: {last_line_of(folder)}"
        try:
            gates = check_rows(folder).gates_of(folder, read_run(folder))
        except RowsError as error:
            return "failed", str(error)
        return "not valid" if any(gate.failed for gate in gates) else "complete", None

    def _note(self, task: FleetTask, state: State, said: str | None) -> None:
        task.state, task.said = state, said
        self._report(f"{task.name}: {state}" + (f": {said}" if said else ""))
        write_fleet(self._folder, self._fleet)


def last_line_of(folder: Path) -> str:
    """Why a sweep ended: the last line that it printed, but for the JSON document that ends it."""
    lines = [line.strip() for line in (folder / SWEEP_LOG).read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("{")), "it printed nothing")
