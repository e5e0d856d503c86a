"""Locust's users of one process: they post the requests of a queue, and a listener gets the responses.

Run as a program it is a load process beside the load generator, a worker of locust's distributed mode.
Importing this module monkey-patches the standard library (gevent): only load processes import it. The queues
below are the patched ones, which yield to locust's users while they block.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from queue import Queue
from time import perf_counter
from typing import Any, ClassVar

import msgspec

# isort: off
from locust import FastHttpUser, task  # first: it patches what the others import
from locust.contrib.fasthttp import FastResponse
from locust.env import Environment
from geventhttpclient.client import HTTPClientPool
from time import sleep  # the patched one
# isort: on

from loadtests.run.requests import Abort, LoadRequest, LoadResponse

REQUEST_TIMEOUT_SECONDS = 600.0
CONNECT_TIMEOUT_SECONDS = 10.0
START_SECONDS = 60.0

Answer = tuple[LoadRequest, LoadResponse]


class RequestUser(FastHttpUser):
    work: ClassVar[Queue[LoadRequest]]
    fixed_headers: ClassVar[Mapping[str, str]]

    @task
    def call(self) -> None:
        request = self.work.get()
        headers = {**self.fixed_headers, "X-Request-ID": request.id, "Content-Type": "application/json"}
        context = {"request": request, "started": perf_counter()}
        self.client.post(
            request.path, data=request.body, headers=headers, name=request.cell.name, context=context
        )


def environment_of(
    url: str,
    headers: Mapping[str, str],
    users: int,
    work: Queue[LoadRequest],
    listener: Callable[[LoadRequest, LoadResponse], None],
) -> Environment:
    """Locust's environment for up to `users` users of this process, who take their requests from `work`.

    They share one pool of connections, so that every request finds an open one.
    """
    pool = HTTPClientPool(
        concurrency=users, network_timeout=REQUEST_TIMEOUT_SECONDS, connection_timeout=CONNECT_TIMEOUT_SECONDS
    )
    attributes = {"work": work, "fixed_headers": headers, "client_pool": pool, "abstract": False}
    user = type("LocustClientUser", (RequestUser,), attributes)
    environment = Environment(user_classes=[user], host=url)

    def on_request(
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
        listener(context["request"], ended)

    environment.events.request.add_listener(on_request)  # type: ignore[no-untyped-call]
    return environment


def await_users(count: Callable[[], int], users: int) -> None:
    """Wait until `count` says `users`. Raises Abort where they do not start."""
    deadline = perf_counter() + START_SECONDS
    while count() < users:
        if perf_counter() > deadline:
            raise Abort(f"locust's users did not start within {START_SECONDS:.0f} s")
        sleep(0.01)


class LocalUsers:
    """`users` locust users of this process; nothing has to be known before it is due."""

    early_seconds = 0.0
    process_ids: tuple[int, ...] = ()

    def __init__(self, url: str, headers: Mapping[str, str], users: int) -> None:
        self._ended: Queue[Answer] = Queue()
        self._work: Queue[LoadRequest] = Queue()
        self._not_got = 0
        environment = environment_of(
            url, headers, users, self._work, lambda request, response: self._ended.put((request, response))
        )
        self._runner = environment.create_local_runner()
        self._runner.start(users, spawn_rate=users)
        await_users(lambda: self._runner.user_count, users)

    @property
    def users(self) -> int:
        return int(self._runner.user_count)

    @property
    def in_flight(self) -> int:
        """Requests without a response."""
        return self._not_got - self._ended.qsize()

    def put(self, request: LoadRequest) -> None:
        """Have the next free user post `request`."""
        self._not_got += 1
        self._work.put(request)

    def get(self, timeout: float | None = None) -> Answer:
        """The next request that has ended. Raises queue.Empty after `timeout` seconds."""
        ended = self._ended.get(timeout=timeout)
        self._not_got -= 1
        return ended

    def close(self) -> None:
        self._runner.quit()


HOST = "127.0.0.1"
"""Due times are on the monotonic clock of one machine, so its processes alone may share them."""

LISTENING, REQUEST, RESPONSE = "listening", "request", "response"
"""Messages: the worker can take requests; one request; the response to one, with the request's id."""


class WorkerInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a load process is started with. `master_port` is that of locust's master."""

    url: str
    headers: dict[str, str]
    users: int
    master_port: int


def main() -> None:
    """Post what the master sends, until it ends this process."""
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerInput)
    inbox: Queue[dict[str, Any]] = Queue()
    work: Queue[LoadRequest] = Queue()

    def answer(request: LoadRequest, response: LoadResponse) -> None:
        runner.send_message(RESPONSE, {"id": request.id, "response": msgspec.to_builtins(response)})

    environment = environment_of(given.url, given.headers, given.users, work, answer)
    # Without options a worker takes them from the configuration files and variables of plain locust.
    environment.parsed_options = Namespace(web_base_path="")
    runner = environment.create_worker_runner(HOST, given.master_port)
    # Locust logs what a listener raises and goes on: they are read below, where an error ends this process.
    runner.register_message(REQUEST, lambda msg, **_: inbox.put(msg.data))
    runner.send_message(LISTENING)
    while True:
        request = msgspec.convert(inbox.get(), LoadRequest)
        # Those of a block come in the order in which they are due.
        while request.intended is not None and (wait_seconds := request.intended - perf_counter()) > 0:
            sleep(wait_seconds)
        work.put(request)


if __name__ == "__main__":
    main()
