"""Runs a fleet: each task on a node of its kind, and again where that dies, until its folder is here."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType

from loadtests.fleet.node import SWEEP_LOG, Brought, Handle, Starts, installed_code, sweep_on_node
from loadtests.fleet.plan import (
    FLEET_FILE,
    WITH_RESULTS,
    Fleet,
    FleetPlan,
    FleetTask,
    State,
    measured_state,
    now,
    read_fleet,
    write_fleet,
)
from loadtests.plan.presets import estimate_most_seconds, estimate_seconds
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

POLL_SECONDS = 1.0

Report = Callable[[str], None]


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


def last_words(folder: Path) -> str:
    """Why a sweep ended, from what it printed: its own last line, but for the JSON document that ends it."""
    log = folder / SWEEP_LOG
    for line in reversed(log.read_text(errors="replace").splitlines() if log.is_file() else []):
        with suppress(ValueError):
            if isinstance(json.loads(line), dict):
                continue
        if line.strip():
            return line.strip()
    return "it said nothing"


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive; `kind` None: it does not say. `cpus` and `gpus` are what it offers in all."""

    id: str
    address: str
    kind: str | None
    cpus: float
    gpus: float

    @property
    def name(self) -> str:
        """For people: an address may have several nodes."""
        return f"{self.address} ({self.id[:8]})"

    def fits(self, task: FleetTask) -> bool:
        """Whether it is of the task's kind and has its device."""
        return self.kind == task.machine and self.cpus >= 1 and (task.device == "cpu" or self.gpus > 0)


def alive(ray: ModuleType) -> list[Node]:
    """The nodes of the cluster."""
    return [
        Node(
            id=one["NodeID"],
            address=one["NodeManagerAddress"],
            kind=one["Labels"].get(LABEL),
            cpus=one["Resources"].get("CPU", 0.0),
            gpus=one["Resources"].get("GPU", 0.0),
        )
        for one in ray.nodes()
        if one["Alive"]
    ]


def lacks(task: FleetTask, nodes: Sequence[Node]) -> str | None:
    """Why no node can run `task` now, with the remedy; None where one can."""
    if any(node.fits(task) for node in nodes):
        return None
    if without_device(task, nodes):
        return f"no node of kind {task.machine} offers a GPU to Ray"
    if any(node.kind == task.machine for node in nodes):
        return f"no node of kind {task.machine} offers a CPU to Ray: start it without --num-cpus=0"
    return (
        f"there is no node of kind {task.machine}: start one with "
        f"`ray start --address=HEAD --labels {LABEL}={task.machine}`"
    )


def without_device(task: FleetTask, nodes: Sequence[Node]) -> bool:
    """Whether its kind of machine is there, and lacks its device."""
    usable = [node for node in nodes if node.kind == task.machine and node.cpus >= 1]
    return bool(usable) and not any(node.fits(task) for node in usable)


@dataclass(slots=True)
class _Running:
    """A task that Ray has; `began` where its sweep did, by the driver's clock."""

    task: FleetTask
    began: float | None = None


class FleetRun:
    """Runs what `fleet` owes into `folder`, whose `fleet.json` follows every change."""

    def __init__(
        self,
        ray: ModuleType,
        fleet: Fleet,
        folder: Path,
        report: Report,
        wait_seconds: float = 0.0,
        command: Sequence[str] = SWEEP_COMMAND,
    ) -> None:
        self._ray, self._fleet, self._folder, self._report = ray, fleet, folder, report
        self._wait_seconds, self._command = wait_seconds, tuple(command)
        self._waiting = fleet.owed
        self._running: dict[Handle, _Running] = {}
        self._missing_since: dict[str, float] = {}
        driver = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        self._starts = ray.remote(num_cpus=0)(Starts).options(label_selector=driver).remote()

    def run(self) -> None:
        """Until nothing is owed that can still be run. KeyboardInterrupt ends what runs, and is raised."""
        self._fleet.ended = self._fleet.stopped_because = None
        try:
            while self._waiting or self._running:
                self._look_at_nodes()
                self._note_starts()
                self._take_what_ended()
        except BaseException as error:
            self._stop(INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"ended by {error!r}")
            raise
        self._fleet.ended = now()
        self._keep()

    def _look_at_nodes(self) -> None:
        """Submit what can run, and give up what no node could run for long enough."""
        nodes = alive(self._ray)
        for task in [*self._waiting, *(one.task for one in self._running.values())]:
            if (why := lacks(task, nodes)) is not None:
                self._lacking(task, why, nodes)
                continue
            self._missing_since.pop(task.name, None)
            if task in self._waiting:
                self._submit(task, [node for node in nodes if node.fits(task)])

    def _lacking(self, task: FleetTask, why: str, nodes: Sequence[Node]) -> None:
        if task in self._waiting and not task.tries and without_device(task, nodes):
            self._waiting.remove(task)
            self._over(task, "left out", why)
        elif task.name not in self._missing_since:
            self._missing_since[task.name] = monotonic()
            self._report(f"{task.name}: {why}; waiting for {self._wait_seconds:.0f} s")
        elif monotonic() - self._missing_since[task.name] >= self._wait_seconds:
            state: State = "not begun"
            for ref, one in list(self._running.items()):
                if one.task is task:
                    state = "not begun" if one.began is None else "lost"
                    self._ray.cancel(ref, force=True)
                    del self._running[ref]
            if task in self._waiting:
                self._waiting.remove(task)
            self._over(task, state, f"{why}; none came within {self._wait_seconds:.0f} s")

    def _submit(self, task: FleetTask, nodes: Sequence[Node]) -> None:
        """All CPUs of a node of its kind, so that no other task is there; GPUs where it runs on them."""
        options = [f"--model={task.model}", f"--device={task.device}", f"--dtype={task.dtype}"]
        sweep = self._ray.remote(sweep_on_node).options(
            num_cpus=min(node.cpus for node in nodes),
            num_gpus=0 if task.device == "cpu" else min(node.gpus for node in nodes),
            label_selector={LABEL: task.machine},
            max_retries=MOST_TRIES - 1,
        )
        ref = sweep.remote(
            task.name, self._fleet.sweep, [*self._command, *options], self._fleet.code, self._starts
        )
        self._running[ref] = _Running(task)
        self._waiting.remove(task)
        task.state, task.said, task.exit_code = "running", None, None
        self._report(f"{task.name}: submitted")
        self._keep()

    def _note_starts(self) -> None:
        """A sweep that begins again was on a node that is lost."""
        tasks = {one.task.name: one for one in self._running.values()}
        for name, at, attempt in self._ray.get(self._starts.take.remote()):
            if (one := tasks.get(name)) is None:
                continue
            if one.began is not None:
                one.task.tries[-1].said = "its node was lost"
                self._report(f"{name}: its node was lost; it runs again")
            one.began = at
            one.task.tries.append(attempt)
            late = "; all else there goes first: set RAY_worker_niceness=0 where Ray is started"
            nice = f" at niceness {attempt.niceness}{late}" if attempt.niceness else ""
            self._report(f"{name}: begins on {attempt.address} ({attempt.node[:8]}){nice}")
            self._keep()

    def _take_what_ended(self) -> None:
        if not self._running:
            sleep(POLL_SECONDS)
            return
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=POLL_SECONDS)
        for ref in ready:
            one = self._running[ref]
            try:
                brought: Brought = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as error:
                self._failed(ref, "failed", str(error.cause or error).strip().rpartition("\n")[2])
            except self._ray.exceptions.RayError as error:
                self._failed(ref, "lost", f"{type(error).__name__}: {str(error).partition('. ')[0]}")
            else:
                self._note_starts()
                self._arrived(ref, one, brought)

    def _failed(self, ref: Handle, state: State, why: str) -> None:
        task = self._running.pop(ref).task
        if task.tries:
            task.tries[-1].said = why
        self._over(task, state, why)

    def _arrived(self, ref: Handle, one: _Running, brought: Brought) -> None:
        """The whole folder is here: what it says of itself is the task's state.

        Where this is interrupted, the task is said to run beside its results, which `read_fleet` then judges.
        """
        task, folder = one.task, self._folder / one.task.name
        last = task.tries[-1]
        unpack(brought.folder, folder)
        last.ended = last.written = now()
        last.sweep_seconds = brought.seconds
        last.control_seconds = monotonic() - (one.began or 0.0) - brought.seconds
        task.exit_code = brought.exit_code
        del self._running[ref]
        if task.exit_code not in WITH_RESULTS or not (folder / RUN_FILE).is_file():
            self._over(task, "failed", f"the sweep ended with code {task.exit_code}: {last_words(folder)}")
            return
        self._keep()
        try:
            self._over(task, measured_state(folder), None)
        except RowsError as error:
            self._over(task, "failed", str(error))

    def _over(self, task: FleetTask, state: State, said: str | None) -> None:
        task.state, task.said = state, said
        self._report(f"{task.name}: {state}" + (f": {said}" if said else ""))
        self._keep()

    def _stop(self, why: str) -> None:
        """End what runs, and keep what is there."""
        for ref, one in self._running.items():
            try:
                self._ray.cancel(ref, force=True)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are ended and all is kept
                self._report(f"{one.task.name}: could not be ended ({error!r}): it ends with this command")
            if one.began is not None:
                one.task.tries[-1].said = why
            one.task.state = "not begun"
        self._running.clear()
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

    `report` is told each change; `address` is kept for going on; `wait_seconds` for a node of a kind that has
    none. Raises PlanError, RunError where `folder` holds a fleet already, FolderInUse, and KeyboardInterrupt,
    with what has finished kept.
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
        for line in notes(alive(ray)):
            report(line)
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
        write_fleet(folder, fleet)
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
    """A fleet of which nothing has run."""
    kinds = sorted({node.kind for node in nodes if node.kind is not None})
    return Fleet(
        name=plan.document.name,
        started=now(),
        plan=plan.text,
        sweep=plan.sweep,
        code=installed_code(),
        address=address,
        tasks=plan.tasks(kinds),
    )


def notes(nodes: Sequence[Node]) -> list[str]:
    """What a user should know of the nodes before anything runs."""
    return [
        f"node {node.name} says no kind of machine, and is not used: `ray start … --labels {LABEL}=KIND`"
        for node in nodes
        if node.kind is None
    ]


def described(plan: FleetPlan, tasks: Sequence[FleetTask], nodes: Sequence[Node]) -> str:
    """What would run where, how long that takes, and what it costs.

    The estimates are those of `tiny` in float32 on the reference machine, whatever the task's own are.
    """
    seconds, most = estimate_seconds(plan.plan), estimate_most_seconds(plan.plan)
    upto = f" to {_minutes(most)}" if most > seconds else ""
    lines = [
        *notes(nodes),
        f"fleet {plan.document.name}: {len(tasks)} tasks, each the sweep {plan.plan.preset} of "
        f"{len(plan.plan.cells)} cells, about {_minutes(seconds)}{upto} (as of tiny in float32 on the "
        "reference machine, without its warm-up)",
        "",
    ]
    for task in tasks:
        on = f"on {', '.join(node.name for node in nodes if node.fits(task))}"
        if (why := lacks(task, nodes)) is not None:
            on = f"{'left out' if without_device(task, nodes) else 'CANNOT RUN NOW'}: {why}"
        lines.append(f"  {task.name:<40} {on}")
    for kind in dict.fromkeys(task.machine for task in tasks):
        own = [task for task in tasks if task.machine == kind and lacks(task, nodes) is None]
        machines = len({node.address for node in nodes if node.kind == kind}) or 1
        hours, price = len(own) * seconds / 3600, own[0].price if own else None
        cost = "no price" if price is None else f"about ${hours * price:.2f} at ${price:g} per hour"
        in_all = _minutes(seconds * -(-len(own) // machines))
        lines.append(f"  {kind}: {len(own)} tasks on {machines} machines, about {in_all}, {cost}")
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"
