"""Locust as a library: sends the requests of a visit, closed or open loop, and yields the responses.

Importing this module monkey-patches the standard library (gevent): only the load generator process imports
it. The queues and `sleep` below are the patched ones, which yield to locust's users while they block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty
from time import perf_counter

import psutil

# isort: off
from loadtests.run.locust_users import Answer, LocalUsers  # first: locust patches what the others import
from time import sleep  # the patched one
# isort: on

from loadtests.run.requests import LoadRequest
from loadtests.run.visits import Abort
from loadtests.run.worker_pool import WorkerPool

OPEN_LOOP_USERS = 64
"""More in flight than an open loop below saturation needs; past it, a visit is cut before one has to wait."""


class LocustClient:
    """`users` locust users or more: in this process, or with `workers` above 1 in so many load processes."""

    def __init__(self, url: str, headers: Mapping[str, str], users: int, workers: int = 1) -> None:
        if workers == 1:
            self._users: LocalUsers | WorkerPool = LocalUsers(url, headers, users)
        else:
            self._users = WorkerPool(url, headers, users, workers)
        self._work = self._ended = self._users
        self._asked = users

    @property
    def users(self) -> int:
        """Running users; of several processes not more than were asked for, each of which has as many."""
        return min(self._asked, self._users.users)

    @property
    def lead_seconds(self) -> float:
        """How long before it is due a request leaves this process."""
        return self._users.lead_seconds

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
        in_flight = 0
        while waiting or in_flight:
            while waiting and in_flight < concurrency:
                self._work.put(waiting.popleft())
                in_flight += 1
            ended = self._ended.get()
            in_flight -= 1
            if waiting:
                # Sent before the caller writes the row of the one that ended.
                self._work.put(waiting.popleft())
                in_flight += 1
                sleep(0)
            yield ended

    def open(self, requests: Sequence[LoadRequest], goes_on: Callable[[int], bool]) -> Iterator[Answer]:
        """Send each of `requests` when it is due, without waiting for responses; yields each as it ends.

        Before each `goes_on` is given the number in flight; false: it and the later ones are not sent.
        """
        in_flight = 0
        for request in requests:
            assert request.intended is not None
            while (wait_seconds := request.intended - self.lead_seconds - perf_counter()) > 0:
                try:
                    ended = self._ended.get(timeout=wait_seconds)
                except Empty:
                    break
                in_flight -= 1
                yield ended
            if not goes_on(self._users.in_flight):
                break
            self._work.put(request)
            in_flight += 1
            sleep(0)  # sent now, also where the next one is late already and nothing is waited for
        for _ in range(in_flight):
            yield self._ended.get()

    def close(self) -> None:
        """Stop locust's users."""
        self._users.close()
