"""Locust as a library: sends the requests of a visit, closed or open loop, and yields the responses.

Importing this module monkey-patches the standard library (gevent): only the load generator process imports
it. The queues and `sleep` below are the patched ones, which yield to locust's users while they block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty, Queue
from time import perf_counter
from typing import Any, ClassVar

# isort: off
from locust import FastHttpUser, task  # first: it patches what the others import
from locust.contrib.fasthttp import FastResponse
from locust.env import Environment
from geventhttpclient.client import HTTPClientPool
from time import sleep  # the patched one
# isort: on

from loadtests.run.requests import LoadRequest, LoadResponse

REQUEST_TIMEOUT_SECONDS = 600.0
CONNECT_TIMEOUT_SECONDS = 10.0
START_SECONDS = 30.0
OPEN_LOOP_USERS = 64
"""More in flight than an open loop below saturation needs; past it, a visit is cut before one has to wait."""


class LocustError(RuntimeError):
    """Locust's users did not start."""


class RequestUser(FastHttpUser):
    """A locust user that posts the requests of a queue."""

    work: ClassVar[Queue[LoadRequest]]
    fixed_headers: ClassVar[Mapping[str, str]]

    @task
    def call(self) -> None:
        """Wait for one request and post it."""
        request = self.work.get()
        headers = {**self.fixed_headers, "X-Request-ID": request.id, "Content-Type": "application/json"}
        context = {"request": request, "started": perf_counter()}
        self.client.post(
            request.path, data=request.body, headers=headers, name=request.cell.name, context=context
        )


class LocustClient:
    """`users` locust users that share one pool of connections, so that every request finds an open one."""

    def __init__(self, url: str, headers: Mapping[str, str], users: int) -> None:
        pool = HTTPClientPool(
            concurrency=users,
            network_timeout=REQUEST_TIMEOUT_SECONDS,
            connection_timeout=CONNECT_TIMEOUT_SECONDS,
        )
        self._ended: Queue[tuple[LoadRequest, LoadResponse]] = Queue()
        self._work: Queue[LoadRequest] = Queue()
        attributes = {"work": self._work, "fixed_headers": headers, "client_pool": pool, "abstract": False}
        user = type("LocustClientUser", (RequestUser,), attributes)
        self._environment = Environment(user_classes=[user], host=url)
        self._environment.events.request.add_listener(self._on_request)  # type: ignore[no-untyped-call]
        self._runner = self._environment.create_local_runner()
        self._runner.start(users, spawn_rate=users)
        deadline = perf_counter() + START_SECONDS
        while self._runner.user_count < users:
            if perf_counter() > deadline:
                raise LocustError(f"locust's users did not start within {START_SECONDS:.0f} s")
            sleep(0.01)

    @property
    def users(self) -> int:
        """Running users."""
        return int(self._runner.user_count)

    def _on_request(
        self,
        response_time: float,
        response: FastResponse,
        exception: Exception | None,
        context: dict[str, Any],
        **_: object,
    ) -> None:
        """`response_time` is locust's own, in ms, unrounded, until the whole body has been read."""
        status = int(response.status_code)
        failure = None if exception is None else f"{type(exception).__name__}: {exception}"
        ended = LoadResponse(context["started"], response_time / 1e3, status, response.text, failure)
        self._ended.put((context["request"], ended))

    def closed(
        self, requests: Sequence[LoadRequest], concurrency: int
    ) -> Iterator[tuple[LoadRequest, LoadResponse]]:
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

    def open(
        self, requests: Sequence[LoadRequest], goes_on: Callable[[int], bool]
    ) -> Iterator[tuple[LoadRequest, LoadResponse]]:
        """Send each of `requests` when it is due, without waiting for responses; yields each as it ends.

        Before each `goes_on` is given the number in flight; false: it and the later ones are not sent.
        """
        in_flight = 0
        for request in requests:
            assert request.intended is not None
            while (wait_seconds := request.intended - perf_counter()) > 0:
                try:
                    ended = self._ended.get(timeout=wait_seconds)
                except Empty:
                    break
                in_flight -= 1
                yield ended
            if not goes_on(in_flight - self._ended.qsize()):  # those that ended and are not yielded yet
                break
            self._work.put(request)
            in_flight += 1
            sleep(0)  # sent now, also where the next one is late already and nothing is waited for
        for _ in range(in_flight):
            yield self._ended.get()

    def close(self) -> None:
        """Stop locust's users."""
        self._runner.quit()
