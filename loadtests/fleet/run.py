"""Runs a fleet: each task on a node of its kind, and again where that dies, until its folder is here."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType
from typing import Any

from loadtests.fleet.node import SWEEP_LOG, Brought, Handle, Starts, installed_code, sweep_on_node
from loadtests.fleet.plan import (
    FLEET_FILE,
    Fleet,
    FleetPlan,
    FleetTask,
    State,
    measured_state,
    now,
    read_fleet,
    write_fleet,
)
from loadtests.plan.presets import estimate_seconds
from loadtests.run.folder import locked
from loadtests.run.rows import RowsError
from loadtests.run.run_file import INTERRUPTED, PLAN_FILE, RUN_FILE, RunError

LABEL = "launchbound-machine"
"""A node's label in Ray, whose value is its kind of machine."""

LOCAL_KIND = "local"
"""The kind of the one node that the command starts itself."""

SWEEP_COMMAND = ("-m", "launchbound", "sweep")
"""Run by the node's own Python, with the options of a task behind it."""

MOST_TRIES = 3
"""So many nodes may be lost under a task before it is given up."""

WITH_RESULTS = (0, 1)
"""Exit codes of a sweep that has measured."""

POLL_SECONDS = 1.0

Report = Callable[[str], None]
Node = dict[str, Any]
"""As Ray lists it."""


def unpack(data: bytes, folder: Path) -> None:
    """Unpack a zip file in place of what an earlier try has left; it is called `folder` once it is whole.

    The extraction of zip files keeps within the folder, whatever names they have.
    """
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(new)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def last_line_of(folder: Path) -> str:
    """Why a sweep ended: the last line that it printed, but for the JSON document that ends it."""
    log = folder / SWEEP_LOG
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    said = [line.strip() for line in lines if line.strip() and not line.startswith("{")]
    return said[-1] if said else "it printed nothing"


def alive(ray: ModuleType) -> list[Node]:
    """The nodes of the cluster."""
    return [node for node in ray.nodes() if node["Alive"]]


def _of_kind(task: FleetTask, nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node["Labels"].get(LABEL) == task.machine]


def _able(task: FleetTask, nodes: Sequence[Node]) -> list[Node]:
    """The nodes of its kind that have what it needs."""
    own = [node for node in _of_kind(task, nodes) if _offers(node, "CPU") >= 1]
    return own if task.device == "cpu" else [node for node in own if _offers(node, "GPU")]


def _offers(node: Node, what: str) -> float:
    return float(node["Resources"].get(what, 0.0))


def lacks_gpu(task: FleetTask, nodes: Sequence[Node]) -> str | None:
    """Why no machine of its kind has the task's device; None where one has, or none is there."""
    own = _of_kind(task, nodes)
    if task.device == "cpu" or not own or any(_offers(node, "GPU") for node in own):
        return None
    return f"no node of kind {task.machine} offers a GPU to Ray"


class FleetRun:
    """Runs what `fleet` owes into `folder`, whose `fleet.json` follows every change."""

    def __init__(
        self,
        ray: ModuleType,
        fleet: Fleet,
        folder: Path,
        report: Report,
        wait_seconds: float,
        command: Sequence[str],
    ) -> None:
        self._ray, self._fleet, self._folder, self._report = ray, fleet, folder, report
        self._wait_seconds, self._command = wait_seconds, command
        self._waiting, self._running = list(fleet.owed), dict[Handle, FleetTask]()
        self._began, self._missing = dict[str, float](), dict[str, float]()
        driver = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        self._starts = ray.remote(num_cpus=0)(Starts).options(label_selector=driver).remote()

    def run(self) -> None:
        """Until nothing is owed that can still be run. KeyboardInterrupt ends what runs, and is raised."""
        self._fleet.ended = self._fleet.stopped_because = None
        try:
            while self._waiting or self._running:
                self._place(alive(self._ray))
                self._note_starts()
                self._take_what_ended()
        except BaseException as error:
            self._stop(INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"ended by {error!r}")
            raise
        self._fleet.ended = now()
        self._keep()

    def _place(self, nodes: Sequence[Node]) -> None:
        """Submit what has a node of its kind, and give up what has had none for `wait_seconds`."""
        for task in [*self._waiting, *self._running.values()]:
            if own := _able(task, nodes):
                self._missing.pop(task.name, None)
                if task in self._waiting:
                    self._submit(task, own)
                continue
            what = "a CPU" if task.device == "cpu" else "a CPU and a GPU"
            start = f"start one with `ray start --address=HEAD --labels {LABEL}={task.machine}`"
            why = f"there is no node of kind {task.machine} with {what} for Ray: {start}"
            if task.name not in self._missing:
                self._missing[task.name] = monotonic()
                self._report(f"{task.name}: {why}; waiting for {self._wait_seconds:.0f} s")
            elif monotonic() - self._missing[task.name] >= self._wait_seconds:
                self._cancel(task)
                self._over(task, "lost" if task.name in self._began else "not begun", why)

    def _submit(self, task: FleetTask, nodes: Sequence[Node]) -> None:
        """All CPUs of a node of its kind, so that no other task is there; GPUs where it runs on them."""
        options = [f"--model={task.model}", f"--device={task.device}", f"--dtype={task.dtype}"]
        sweep = self._ray.remote(sweep_on_node).options(
            num_cpus=min(_offers(node, "CPU") for node in nodes),
            num_gpus=0 if task.device == "cpu" else min(_offers(node, "GPU") for node in nodes),
            label_selector={LABEL: task.machine},
            max_retries=MOST_TRIES - 1,
        )
        arguments = [*self._command, *options]
        ref = sweep.remote(task.name, self._fleet.sweep, arguments, self._fleet.code, self._starts)
        self._waiting.remove(task)
        self._running[ref] = task
        task.state, task.said, task.exit_code = "running", None, None
        self._report(f"{task.name}: submitted")
        self._keep()

    def _note_starts(self) -> None:
        """A sweep that begins again was on a node that is lost."""
        tasks = {task.name: task for task in self._running.values()}
        for name, at, attempt in self._ray.get(self._starts.take.remote()):
            if (task := tasks.get(name)) is None:
                continue
            if name in self._began:
                task.tries[-1].said = "its node was lost"
            self._began[name] = at
            task.tries.append(attempt)
            slow = f" at niceness {attempt.niceness}: set RAY_worker_niceness=0" if attempt.niceness else ""
            self._report(f"{name}: try {len(task.tries)} begins on {attempt.address}{slow}")
            self._keep()

    def _take_what_ended(self) -> None:
        if not self._running:
            sleep(POLL_SECONDS)
            return
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=POLL_SECONDS)
        for ref in ready:
            task = self._running[ref]
            try:
                brought: Brought = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as error:
                self._over(task, "failed", str(error.cause or error).strip().rpartition("\n")[2])
            except self._ray.exceptions.RayError as error:
                self._over(task, "lost", f"{type(error).__name__}: {str(error).partition('. ')[0]}")
            else:
                self._note_starts()
                self._arrived(task, brought)

    def _arrived(self, task: FleetTask, brought: Brought) -> None:
        """The whole folder is here: what it says of itself is the task's state."""
        folder, last = self._folder / task.name, task.tries[-1]
        unpack(brought.folder, folder)
        last.ended, last.sweep_seconds = now(), brought.seconds
        last.control_seconds = monotonic() - self._began[task.name] - brought.seconds
        task.exit_code = brought.exit_code
        if task.exit_code not in WITH_RESULTS or not (folder / RUN_FILE).is_file():
            why = f"the sweep ended with code {task.exit_code}: {last_line_of(folder)}"
            self._over(task, "failed", why)
            return
        try:
            self._over(task, measured_state(folder), None)
        except RowsError as error:
            self._over(task, "failed", str(error))

    def _over(self, task: FleetTask, state: State, said: str | None) -> None:
        self._waiting = [one for one in self._waiting if one is not task]
        self._running = {ref: one for ref, one in self._running.items() if one is not task}
        task.state, task.said = state, said
        if said and task.name in self._began:
            task.tries[-1].said = said
        self._report(f"{task.name}: {state}" + (f": {said}" if said else ""))
        self._keep()

    def _cancel(self, task: FleetTask) -> None:
        for ref in [ref for ref, one in self._running.items() if one is task]:
            try:
                self._ray.cancel(ref, force=True)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are ended and all is kept
                self._report(f"{task.name}: could not be ended ({error!r}): it ends with this command")

    def _stop(self, why: str) -> None:
        """End what runs, and keep what is there."""
        for task in self._running.values():
            self._cancel(task)
            if task.name in self._began:
                task.tries[-1].said = why
            task.state = "not begun"
        self._fleet.stopped_because, self._fleet.ended = why, now()
        self._keep()

    def _keep(self) -> None:
        write_fleet(self._folder, self._fleet)


def begin(
    ray: ModuleType,
    plan: FleetPlan,
    folder: Path,
    report: Report,
    *,
    address: str | None = None,
    wait_seconds: float = 0.0,
    command: Sequence[str] = SWEEP_COMMAND,
) -> Fleet:
    """Run all tasks of `plan` on the cluster that `ray` is connected to, into `folder`, which is created.

    `report` is given each change; `address` is kept for --resume; `wait_seconds` for a node of a kind that
    has none. Raises PlanError, RunError where `folder` holds a fleet already, FolderInUse, and
    KeyboardInterrupt, with what has finished kept.
    """
    if (folder / FLEET_FILE).exists():
        raise RunError(
            f"{folder} holds a fleet already: name a new folder, or go on with it by --resume {folder}"
        )
    fleet = planned(plan, alive(ray), address)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        (folder / PLAN_FILE).write_text(fleet.sweep, encoding="utf-8")
        write_fleet(folder, fleet)
        FleetRun(ray, fleet, folder, report, wait_seconds, command).run()
    return fleet


def go_on(
    ray: ModuleType,
    folder: Path,
    report: Report,
    *,
    wait_seconds: float = 0.0,
    command: Sequence[str] = SWEEP_COMMAND,
) -> Fleet:
    """Run the tasks of the fleet in `folder` that have no results, those that failed too; else as `begin`.

    Raises RunError where nothing is owed, and where this is not the code that the fleet began with.
    """
    with locked(folder):
        fleet = read_fleet(folder)
        if not fleet.owed:
            raise RunError(f"nothing is left to run in {folder}: `launchbound report {folder}` reports it")
        if (code := installed_code()) != fleet.code:
            raise RunError(
                f"the fleet in {folder} was begun with launchbound {fleet.code}, this is {code}: go on with "
                "that one, or begin a new fleet"
            )
        FleetRun(ray, fleet, folder, report, wait_seconds, command).run()
    return fleet


def planned(plan: FleetPlan, nodes: Sequence[Node], address: str | None) -> Fleet:
    """A fleet of which nothing has run; what no machine of its kind has the device for is left out."""
    kinds = {node["Labels"].get(LABEL) for node in nodes}
    tasks = plan.tasks(sorted(kind for kind in kinds if kind is not None))
    for task in tasks:
        if why := lacks_gpu(task, nodes):
            task.state, task.said = "left out", why
    return Fleet(
        name=plan.document.name,
        started=now(),
        plan=plan.text,
        sweep=plan.sweep,
        code=installed_code(),
        address=address,
        tasks=tasks,
    )


def described(plan: FleetPlan, tasks: Sequence[FleetTask], nodes: Sequence[Node]) -> str:
    """What would run where, how long that takes, and what it costs.

    The estimates are those of `tiny` in float32 on the reference machine, whatever the task's own are.
    """
    seconds = estimate_seconds(plan.plan)
    lines = [
        f"fleet {plan.document.name}: {len(tasks)} tasks, each the sweep {plan.plan.preset} of "
        f"{len(plan.plan.cells)} cells, about {seconds / 60:.1f} min (as of tiny in float32 on the "
        "reference machine, without its warm-up)",
        "",
    ]
    for task in tasks:
        own = [f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})" for node in _able(task, nodes)]
        price = "" if task.price is None else f", about ${seconds / 3600 * task.price:.2f}"
        place = (
            f"on {', '.join(own)}{price}" if own else "CANNOT RUN NOW: no node of its kind has what it needs"
        )
        lines.append(f"  {task.name:<40} {f'left out: {task.said}' if task.said else place}")
    return "\n".join(lines)
