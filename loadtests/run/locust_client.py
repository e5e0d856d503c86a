"""Locust as a library: sends the requests of a block, closed or open loop, from one process or several.

Importing this module monkey-patches the standard library (gevent): only the load generator process imports
it. The queues and `sleep` below are the patched ones, which yield to locust's users while they block.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from queue import Empty, Queue
from time import perf_counter
from typing import Any

import msgspec
import psutil

# isort: off
from loadtests.run.locust_users import (
    HOST,
    LISTENING,
    REQUEST,
    RESPONSE,
    START_SECONDS,
    Answer,
    LocalUsers,
    WorkerInput,
    await_users,
    environment_of,
)  # first: locust patches what the others import
from locust import runners
from threading import Event, Thread  # the patched ones
from time import sleep
# isort: on

from loadtests.run.requests import Abort, LoadRequest, LoadResponse
from service.parent_death import owned

OPEN_LOOP_USERS = 64
"""More in flight than an open loop below saturation needs; past it, a block is cut before one has to wait."""


class LocustClient:
    """`users` locust users or more: in this process, or with `workers` above 1 in so many load processes."""

    def __init__(self, url: str, headers: Mapping[str, str], users: int, workers: int = 1) -> None:
        if workers == 1:
            self._users: LocalUsers | WorkerPool = LocalUsers(url, headers, users)
        else:
            self._users = WorkerPool(url, headers, users, workers)
        self._asked = users

    @property
    def users(self) -> int:
        """Running users; of several processes not more than were asked for, each of which has as many."""
        return min(self._asked, self._users.users)

    @property
    def early_seconds(self) -> float:
        """How long before it is due a request leaves this process."""
        return self._users.early_seconds

    def cpu_seconds(self) -> list[float]:
        """CPU time of this process and of each load process, since they started. Raises Abort without one."""
        try:
            processes = [psutil.Process(), *(psutil.Process(pid) for pid in self._users.process_ids)]
            read = [process.cpu_times() for process in processes]
        except psutil.NoSuchProcess as error:
            raise Abort(f"load process {error.pid} has ended: see load_generator.log") from error
        return [float(times.user + times.system) for times in read]

    def closed(self, requests: Sequence[LoadRequest], concurrency: int) -> Iterator[Answer]:
        """Send `requests`, `concurrency` of them in flight at a time; yields each as it ends."""
        waiting = deque(requests)
        for _ in range(min(concurrency, len(waiting))):
            self._users.put(waiting.popleft())
        for _ in requests:
            ended = self._users.get()
            if waiting:
                # Sent before the caller writes the row of the one that ended.
                self._users.put(waiting.popleft())
                sleep(0)
            yield ended

    def open(self, requests: Sequence[LoadRequest], goes_on: Callable[[int], bool]) -> Iterator[Answer]:
        """Send each of `requests` when it is due, without waiting for responses; yields each as it ends.

        Before each `goes_on` is given the number in flight; false: it and the later ones are not sent.
        """
        in_flight = 0
        for request in requests:
            assert request.intended is not None
            while (wait_seconds := request.intended - self.early_seconds - perf_counter()) > 0:
                try:
                    ended = self._users.get(timeout=wait_seconds)
                except Empty:
                    break
                in_flight -= 1
                yield ended
            if not goes_on(self._users.in_flight):
                break
            self._users.put(request)
            in_flight += 1
            sleep(0)  # sent now, also where the next one is late already and nothing is waited for
        for _ in range(in_flight):
            yield self._users.get()

    def close(self) -> None:
        self._users.close()


EARLY_SECONDS = 0.05
"""A request is handed out so long before it is due: longer than a message takes on a busy machine, and not so
long that many are out already when a block has to end early."""

WATCH_SECONDS = 0.5

SILENT_SECONDS = 10
"""A worker that is silent for so long is lost. Locust's own 3 s pass on a machine that is merely busy."""

REMEDY = "see load_generator.log and the machine's memory"


class WorkerPool:
    """`workers` load processes with at least `users` locust users in all, the same number in each.

    A request goes to the process with the fewest in flight, in turn where several have as few. Processes have
    the cores of this one, and end with it, however that ends.
    """

    early_seconds = EARLY_SECONDS

    def __init__(self, url: str, headers: Mapping[str, str], users: int, workers: int) -> None:
        self._handed_out: dict[str, LoadRequest] = {}
        self._early: deque[float] = deque()
        self._inbox: Queue[Any] = Queue()
        self._load: dict[str, int] = {}
        each = -(-users // workers)
        environment = environment_of(url, headers, each, Queue(), _not_here)
        runners.HEARTBEAT_LIVENESS = SILENT_SECONDS  # in heartbeats, of which there is one per second
        self._runner = environment.create_master_runner(HOST, 0)
        self._runner.register_message(LISTENING, lambda msg, **_: self._load.setdefault(msg.node_id, 0))
        self._runner.register_message(RESPONSE, lambda msg, **_: self._inbox.put(msg))
        given = WorkerInput(url=url, headers=dict(headers), users=each, master_port=self._runner.server.port)
        self._processes = [_started(given) for _ in range(workers)]
        self._closing = Event()
        Thread(target=self._watch, daemon=True).start()
        try:
            self._await_workers(workers)
            self._runner.start(each * workers, spawn_rate=each * workers)
            await_users(lambda: self._runner.user_count, each * workers)
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    @property
    def users(self) -> int:
        """Running users, as the workers reported them."""
        return int(self._runner.user_count)

    @property
    def in_flight(self) -> int:
        """Requests that are due and without a response: not those that were handed out before."""
        now = perf_counter()
        while self._early and self._early[0] <= now:
            self._early.popleft()
        return len(self._handed_out) - self._inbox.qsize() - len(self._early)

    def put(self, request: LoadRequest) -> None:
        """Hand `request` to a worker, which posts it when it is due."""
        worker = min(self._load, key=self._load.__getitem__)
        # Put back last: of workers that are equally busy, the next request goes to another.
        self._load[worker] = self._load.pop(worker) + 1
        self._handed_out[request.id] = request
        if request.intended is not None:
            self._early.append(request.intended)
        self._runner.send_message(REQUEST, msgspec.to_builtins(request), worker)

    def get(self, timeout: float | None = None) -> Answer:
        """The next request that has ended. Raises queue.Empty after `timeout` seconds.

        Raises Abort where a worker has ended, or no longer answers its master.
        """
        found = self._inbox.get(timeout=timeout)
        if isinstance(found, Abort):
            raise found
        self._load[found.node_id] -= 1
        request = self._handed_out.pop(found.data["id"])
        response = msgspec.convert(found.data["response"], LoadResponse)
        return request, replace(response, worker=self._runner.get_worker_index(found.node_id))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._closing.set()
        for process in self._processes:
            process.kill()  # one that is stopped ends by nothing else
        for process in self._processes:
            process.wait()
        self._runner.greenlet.kill()
        self._runner.server.close(linger=0)  # type: ignore[no-untyped-call]

    def _await_workers(self, workers: int) -> None:
        deadline = perf_counter() + START_SECONDS
        while len(self._load) < workers:
            if not self._inbox.empty():
                raise Abort(str(self._inbox.get()))
            if perf_counter() > deadline:
                raise Abort(f"{workers} load processes did not start within {START_SECONDS:.0f} s")
            sleep(0.01)

    def _watch(self) -> None:
        """Have `get` raise once a worker can answer no more."""
        while not self._closing.wait(WATCH_SECONDS):
            for process in self._processes:
                if (status := process.poll()) is not None:
                    how = f"signal {-status}" if status < 0 else f"exit status {status}"
                    self._inbox.put(Abort(f"load process {process.pid} ended with {how}: {REMEDY}"))
                    return
            if self._runner.clients.missing:
                self._inbox.put(Abort(f"a load process no longer answers the load generator: {REMEDY}"))
                return


def _not_here(request: LoadRequest, response: LoadResponse) -> None:
    raise AssertionError(f"the master posted {request.id} itself, and got {response.status}")


def _started(given: WorkerInput) -> subprocess.Popen[bytes]:
    """A load process. Its output goes to our standard error: ours is read by the sweep."""
    process = subprocess.Popen(
        owned([sys.executable, "-m", "loadtests.run.locust_users"], signal.SIGKILL),
        stdin=subprocess.PIPE,
        stdout=sys.stderr.fileno(),
        env=dict(os.environ),
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(msgspec.json.encode(given))
    return process
