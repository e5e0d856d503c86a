"""Runs a fleet: each task on a node of its kind, and again where that dies, until its folder is here."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable, Sequence
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
    Try,
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


def last_line_of(folder: Path) -> str:
    """Why a sweep ended: the last line that it printed, but for the JSON document that ends it."""
    log = folder / SWEEP_LOG
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    said = [line.strip() for line in lines if line.strip() and not line.startswith("{")]
    return said[-1] if said else "it printed nothing"


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
    own = [node for node in nodes if node.kind == task.machine]
    if not own:
        return (
            f"there is no node of kind {task.machine}: start one with "
            f"`ray start --address=HEAD --labels {LABEL}={task.machine}`"
        )
    if not any(node.cpus >= 1 for node in own):
        return f"no node of kind {task.machine} offers a CPU to Ray: start it without --num-cpus=0"
    return None if any(node.fits(task) for node in own) else _without_gpu(task)


def _without_gpu(task: FleetTask) -> str:
    return f"no node of kind {task.machine} offers a GPU to Ray"


@dataclass(slots=True, eq=False)
class _Job:
    """A task that is owed: `ref` once Ray has it, `began` when its sweep did, by the driver's clock.

    `missing_since`: no node has been able to run it.
    """

    task: FleetTask
    ref: Handle | None = None
    began: float = 0.0
    missing_since: float | None = None


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
        self._jobs = [_Job(task) for task in fleet.owed]
        driver = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        self._starts = ray.remote(num_cpus=0)(Starts).options(label_selector=driver).remote()

    def run(self) -> None:
        """Until nothing is owed that can still be run. KeyboardInterrupt ends what runs, and is raised."""
        self._fleet.ended = self._fleet.stopped_because = None
        try:
            while self._jobs:
                nodes = alive(self._ray)
                for job in list(self._jobs):
                    self._place(job, nodes)
                self._note_starts()
                self._take_what_ended()
        except BaseException as error:
            self._stop(INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"ended by {error!r}")
            raise
        self._fleet.ended = now()
        self._keep()

    def _place(self, job: _Job, nodes: Sequence[Node]) -> None:
        """Submit it where it can run, and give it up where no node could run it for long enough."""
        task, why = job.task, lacks(job.task, nodes)
        if why is None:
            job.missing_since = None
            if job.ref is None:
                self._submit(job, [node for node in nodes if node.fits(task)])
        elif why == _without_gpu(task) and job.ref is None and not task.tries:
            self._over(job, "left out", why)
        elif job.missing_since is None:
            job.missing_since = monotonic()
            self._report(f"{task.name}: {why}; waiting for {self._wait_seconds:.0f} s")
        elif monotonic() - job.missing_since >= self._wait_seconds:
            if job.ref is not None:
                self._ray.cancel(job.ref, force=True)
            state: State = "lost" if job.began else "not begun"
            self._over(job, state, f"{why}; none came within {self._wait_seconds:.0f} s")

    def _submit(self, job: _Job, nodes: Sequence[Node]) -> None:
        """All CPUs of a node of its kind, so that no other task is there; GPUs where it runs on them."""
        task = job.task
        options = [f"--model={task.model}", f"--device={task.device}", f"--dtype={task.dtype}"]
        sweep = self._ray.remote(sweep_on_node).options(
            num_cpus=min(node.cpus for node in nodes),
            num_gpus=0 if task.device == "cpu" else min(node.gpus for node in nodes),
            label_selector={LABEL: task.machine},
            max_retries=MOST_TRIES - 1,
        )
        job.ref = sweep.remote(
            task.name, self._fleet.sweep, [*self._command, *options], self._fleet.code, self._starts
        )
        task.state, task.said, task.exit_code = "running", None, None
        self._report(f"{task.name}: submitted")
        self._keep()

    def _note_starts(self) -> None:
        """A sweep that begins again was on a node that is lost."""
        jobs = {job.task.name: job for job in self._jobs}
        for name, at, event in self._ray.get(self._starts.take.remote()):
            if (job := jobs.get(name)) is None:
                continue
            if isinstance(event, str):
                self._report(f"{name}: {event}")
                continue
            if job.began:
                job.task.tries[-1].said = "its node was lost"
                self._report(f"{name}: its node was lost; it runs again")
            job.began = at
            job.task.tries.append(event)
            self._report(f"{name}: begins on {_described(event)}")
            self._keep()

    def _take_what_ended(self) -> None:
        jobs = {job.ref: job for job in self._jobs if job.ref is not None}
        if not jobs:
            sleep(POLL_SECONDS)
            return
        ready, _ = self._ray.wait(list(jobs), num_returns=1, timeout=POLL_SECONDS)
        for ref in ready:
            job = jobs[ref]
            try:
                brought: Brought = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as error:
                self._failed(job, "failed", str(error.cause or error).strip().rpartition("\n")[2])
            except self._ray.exceptions.RayError as error:
                self._failed(job, "lost", f"{type(error).__name__}: {str(error).partition('. ')[0]}")
            else:
                self._note_starts()
                self._arrived(job, brought)

    def _failed(self, job: _Job, state: State, why: str) -> None:
        if job.task.tries:
            job.task.tries[-1].said = why
        self._over(job, state, why)

    def _arrived(self, job: _Job, brought: Brought) -> None:
        """The whole folder is here: what it says of itself is the task's state.

        Where this is interrupted, the task is said to run beside its results, which `read_fleet` then judges.
        """
        task, folder = job.task, self._folder / job.task.name
        unpack(brought.folder, folder)
        last = task.tries[-1]
        last.ended, last.sweep_seconds = now(), brought.seconds
        last.control_seconds = monotonic() - job.began - brought.seconds
        task.exit_code = brought.exit_code
        self._jobs.remove(job)
        if task.exit_code not in WITH_RESULTS or not (folder / RUN_FILE).is_file():
            why = f"the sweep ended with code {task.exit_code}: {last_line_of(folder)}"
            self._over(job, "failed", why)
            return
        self._keep()
        try:
            self._over(job, measured_state(folder), None)
        except RowsError as error:
            self._over(job, "failed", str(error))

    def _over(self, job: _Job, state: State, said: str | None) -> None:
        if job in self._jobs:
            self._jobs.remove(job)
        job.task.state, job.task.said = state, said
        self._report(f"{job.task.name}: {state}" + (f": {said}" if said else ""))
        self._keep()

    def _stop(self, why: str) -> None:
        """End what runs, and keep what is there."""
        for job in self._jobs:
            if job.ref is None:
                continue
            try:
                self._ray.cancel(job.ref, force=True)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are ended and all is kept
                self._report(f"{job.task.name}: could not be ended ({error!r}): it ends with this command")
            if job.began:
                job.task.tries[-1].said = why
            job.task.state = "not begun"
        self._fleet.stopped_because, self._fleet.ended = why, now()
        self._keep()

    def _keep(self) -> None:
        write_fleet(self._folder, self._fleet)


def _described(attempt: Try) -> str:
    on = f"{attempt.address} ({attempt.node[:8]})"
    if not attempt.niceness:
        return on
    remedy = "set RAY_worker_niceness=0 where Ray is started"
    return f"{on} at niceness {attempt.niceness}: all else there runs first; {remedy}"


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
        why = lacks(task, nodes)
        place = f"on {', '.join(node.name for node in nodes if node.fits(task))}"
        price = "" if task.price is None else f", about ${seconds / 3600 * task.price:.2f}"
        verdict = "left out" if why == _without_gpu(task) else "CANNOT RUN NOW"
        lines.append(f"  {task.name:<40} " + (f"{verdict}: {why}" if why else place + price))
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"
