"""A load process beside the load generator: `python -m loadtests.run.load_worker`, its input on stdin.

It is a worker of locust's distributed mode: it posts the requests that the master hands it, each when it is
due, and gives the responses back.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from queue import Queue
from time import perf_counter
from typing import Any

import msgspec

# isort: off
from loadtests.run.locust_users import environment_of  # first: locust patches what the others import
from time import sleep  # the patched one
# isort: on

from loadtests.run.requests import LoadRequest, LoadResponse

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
    told = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerInput)
    inbox: Queue[dict[str, Any]] = Queue()
    work: Queue[LoadRequest] = Queue()

    def answer(request: LoadRequest, response: LoadResponse) -> None:
        runner.send_message(RESPONSE, {"id": request.id, "response": msgspec.to_builtins(response)})

    environment = environment_of(told.url, told.headers, told.users, work, answer)
    # Without options a worker takes them from the configuration files and variables of plain locust.
    environment.parsed_options = Namespace(web_base_path="")
    runner = environment.create_worker_runner(HOST, told.master_port)
    # Locust logs what a listener raises and goes on: they are read below, where an error ends this process.
    runner.register_message(REQUEST, lambda msg, **_: inbox.put(msg.data))
    runner.send_message(LISTENING)
    while True:
        request = msgspec.convert(inbox.get(), LoadRequest)
        # Those of a visit come in the order in which they are due.
        while request.intended is not None and (wait_seconds := request.intended - perf_counter()) > 0:
            sleep(wait_seconds)
        work.put(request)


if __name__ == "__main__":
    main()
