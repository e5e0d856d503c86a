"""Locust as a library: sends the requests of a visit, closed or open loop, and hands back the answers.

Importing this replaces parts of the standard library (gevent): only the load generator's process may. The
queues and the sleep below rest on the replaced ones, which let locust's users run while they wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from queue import Empty, Queue
from time import perf_counter
from typing import Any, ClassVar

# isort: off
from locust import FastHttpUser, task  # first: it patches what the others import
from locust.contrib.fasthttp import FastResponse
from locust.env import Environment
from geventhttpclient.client import HTTPClientPool
from time import sleep  # the replaced one
# isort: on

from loadtests.run.requests import LoadRequest, LoadResponse

REQUEST_TIMEOUT_SECONDS = 600.0
CONNECT_TIMEOUT_SECONDS = 10.0
START_SECONDS = 30.0
OPEN_LOOP_USERS = 64
"""More in flight than an open loop below saturation needs; where that is wrong, the rate gate says so."""


class LocustError(RuntimeError):
    """The load generator itself failed."""


class RequestUser(FastHttpUser):
    """A locust user that posts whatever request comes down the generator."""

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
    """`users` locust users that share one pool of connections, so that a lone request finds a warm one."""

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
        """Users that run now."""
        return int(self._runner.user_count)

    def _on_request(
        self,
        response_time: float,
        response: FastResponse,
        exception: Exception | None,
        context: dict[str, Any],
        **_: object,
    ) -> None:
        """Locust's own clock around the exchange, unrounded, body included."""
        status = int(response.status_code)
        failure = None if exception is None else f"{type(exception).__name__}: {exception}"
        ended = LoadResponse(context["started"], response_time / 1e3, status, response.text, failure)
        self._ended.put((context["request"], ended))

    def closed(
        self, requests: Sequence[LoadRequest], concurrency: int
    ) -> Iterator[tuple[LoadRequest, LoadResponse]]:
        """Send `requests`, `concurrency` of them in flight at a time; yields each as it ends."""
        waiting = deque(requests)
        flying = 0
        while waiting or flying:
            while waiting and flying < concurrency:
                self._work.put(waiting.popleft())
                flying += 1
            ended = self._ended.get()
            flying -= 1
            if waiting:
                # On its way before the caller writes this one's row.
                self._work.put(waiting.popleft())
                flying += 1
                sleep(0)
            yield ended

    def open(self, requests: Sequence[LoadRequest]) -> Iterator[tuple[LoadRequest, LoadResponse]]:
        """Send each of `requests` when it is due, answered or not; yields each as it ends."""
        flying = 0
        for request in requests:
            assert request.intended is not None
            while (wait_seconds := request.intended - perf_counter()) > 0:
                try:
                    ended = self._ended.get(timeout=wait_seconds)
                except Empty:
                    break
                flying -= 1
                yield ended
            self._work.put(request)
            flying += 1
        for _ in range(flying):
            yield self._ended.get()

    def close(self) -> None:
        """Stop locust's users."""
        self._runner.quit()
