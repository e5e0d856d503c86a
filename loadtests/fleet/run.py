"""Runs a fleet: each task on a free machine of its kind, its folder taken, what was lost tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Generic

from loadtests.fleet.arrival import Arrival, last_words
from loadtests.fleet.cluster import Cluster, Handle, NodeLost, RollCall, Unusable
from loadtests.fleet.messages import SWEEP_COMMAND, Ended, Event, Order, Piece, Refused, Sent, Started
from loadtests.fleet.nodes import Asked, chosen, lacks, without_device
from loadtests.fleet.record import (
    WITH_RESULTS,
    Fleet,
    FleetTask,
    State,
    Try,
    measured_state,
    now,
    write_fleet,
)
from loadtests.run.rows import RowsError
from loadtests.run.run_file import INTERRUPTED, RUN_FILE

MOST_TRIES = 3
"""So many nodes may be lost under a task before it is given up."""

POLL_SECONDS = 1.0

Report = Callable[[str], None]


@dataclass(slots=True)
class _Running:
    """A task on a machine; `submitted` is the driver's clock."""

    task: FleetTask
    attempt: Try
    machine: str
    submitted: float
    arrival: Arrival


class FleetRun(Generic[Handle]):
    """Runs what `fleet` owes into `folder`, whose `fleet.json` follows every change."""

    def __init__(
        self,
        cluster: Cluster[Handle],
        fleet: Fleet,
        folder: Path,
        report: Report,
        *,
        wait_seconds: float = 0.0,
        command: Sequence[str] = SWEEP_COMMAND,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._cluster, self._fleet, self._folder, self._report = cluster, fleet, folder, report
        self._wait_seconds, self._command, self._clock = wait_seconds, tuple(command), clock
        self._roll_call = RollCall(cluster, fleet.code)
        self._waiting = fleet.owed
        self._running: dict[Handle, _Running] = {}
        self._missing_since: dict[str, float] = {}
        self._tries: dict[str, int] = {}

    def run(self) -> None:
        """Until nothing is owed that can still be run. KeyboardInterrupt ends what runs, and is raised."""
        self._fleet.ended = self._fleet.stopped_because = None
        try:
            while self._waiting or self._running:
                if self._waiting:
                    self._start_what_can()
                if (handle := self._cluster.wait(list(self._running), POLL_SECONDS)) is not None:
                    self._take(handle)
        except BaseException as error:
            self._stop(INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"ended by {error!r}")
            raise
        self._fleet.ended = now()
        self._keep()

    def _start_what_can(self) -> None:
        nodes = self._roll_call.nodes()
        for task in list(self._waiting):
            if (why := lacks(task, nodes)) is not None:
                self._lacking(task, why, nodes)
                continue
            self._missing_since.pop(task.name, None)
            busy = [one.machine for one in self._running.values()]
            if (place := chosen(task, nodes, busy)) is not None:
                self._start(task, place)

    def _lacking(self, task: FleetTask, why: str, nodes: Sequence[Asked]) -> None:
        """Say at once that no node can run `task`, and give it up once that was so for long enough."""
        if without_device(task, nodes) and not task.tries:
            task.state, task.said = "left out", why
        elif task.name not in self._missing_since:
            self._missing_since[task.name] = self._clock()
            self._report(f"{task.name}: {why}; waiting for {self._wait_seconds:.0f} s")
            return
        elif self._clock() - self._missing_since[task.name] < self._wait_seconds:
            return
        else:
            task.said = f"{why}; none came within {self._wait_seconds:.0f} s"
        self._waiting.remove(task)
        self._report(f"{task.name}: {task.state}: {task.said}")
        self._keep()

    def _start(self, task: FleetTask, place: Asked) -> None:
        assert place.facts is not None
        options = [f"--model={task.model}", f"--device={task.device}", f"--dtype={task.dtype}"]
        order = Order(plan=self._fleet.sweep, options=options, code=self._fleet.code, command=self._command)
        attempt = Try(node=place.node.id, address=place.node.address, submitted=now())
        task.tries.append(attempt)
        task.state, task.said, task.exit_code = "running", None, None
        self._tries[task.name] = self._tries.get(task.name, 0) + 1
        self._waiting.remove(task)
        arrival = Arrival(self._folder, task.name)
        self._keep()
        submitted = self._clock()
        handle = self._cluster.submit(place.node, order)
        self._running[handle] = _Running(task, attempt, place.facts.machine, submitted, arrival)
        self._report(f"{task.name}: submitted to {place.node.name}, try {len(task.tries)}")

    def _take(self, handle: Handle) -> None:
        """One event of a task that runs."""
        one = self._running[handle]
        try:
            event = self._cluster.next(handle)
        except NodeLost as error:
            self._lost(handle, str(error))
            return
        except Unusable as error:
            event = Refused(said=str(error))
        self._noted(handle, one, event)

    def _noted(self, handle: Handle, one: _Running, event: Event) -> None:
        match event:
            case Started(facts=facts):
                one.attempt.started, one.attempt.niceness = now(), facts.niceness
                self._keep()
            case Ended(exit_code=exit_code, seconds=seconds):
                one.attempt.ended, one.attempt.sweep_seconds = now(), seconds
                one.task.exit_code = exit_code
                self._keep()
            case Piece(data=data):
                one.arrival.add(data)
            case Refused(said=said):
                del self._running[handle]
                one.arrival.drop()
                self._over(one.task, "failed", said)
            case Sent():
                folder = one.arrival.unpack()
                del self._running[handle]
                self._arrived(one, folder)

    def _arrived(self, one: _Running, folder: Path) -> None:
        """The whole folder is here: what it says of itself is the task's state.

        Where this is interrupted, the task is said to run beside its results, which `read_fleet` then judges.
        """
        task, attempt = one.task, one.attempt
        attempt.written = now()
        attempt.control_seconds = self._clock() - one.submitted - (attempt.sweep_seconds or 0.0)
        if task.exit_code in WITH_RESULTS and (folder / RUN_FILE).is_file():
            state, said = _judged(folder)
        else:
            state, said = "failed", f"the sweep ended with code {task.exit_code}: {last_words(folder)}"
        self._over(task, state, said)

    def _over(self, task: FleetTask, state: State, said: str | None) -> None:
        task.state, task.said = state, said
        self._report(f"{task.name}: {state}" + (f": {said}" if said else ""))
        self._keep()

    def _lost(self, handle: Handle, why: str) -> None:
        """Try again on another node, up to MOST_TRIES."""
        one = self._running.pop(handle)
        one.arrival.drop()
        one.attempt.said = why
        task = one.task
        task.state, task.said = "lost", why
        if again := self._tries[task.name] < MOST_TRIES:
            self._waiting.append(task)
        self._report(f"{task.name}: lost: {why}" + ("; it is run again" if again else "; given up"))
        self._keep()

    def _stop(self, why: str) -> None:
        """End what runs, and keep what is there."""
        for handle, one in self._running.items():
            try:
                self._cluster.cancel(handle)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are ended and all is kept
                self._report(f"{one.task.name}: could not be ended ({error!r}): it ends with this command")
            one.arrival.drop()
            one.attempt.said = why
            one.task.state = "not begun"
        self._running.clear()
        self._fleet.stopped_because, self._fleet.ended = why, now()
        self._keep()

    def _keep(self) -> None:
        write_fleet(self._folder, self._fleet)


def _judged(folder: Path) -> tuple[State, str | None]:
    """The state of a task by its results, and why it has none that can be read."""
    try:
        return measured_state(folder), None
    except RowsError as error:
        return "failed", str(error)
