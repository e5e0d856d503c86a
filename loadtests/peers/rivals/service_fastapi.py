"""FastAPI on uvicorn: `inline` calls the model in the route, `floor` returns the same JSON without one."""

from __future__ import annotations

import json
import socket
import sys
from importlib.metadata import version
from typing import Any

import uvicorn
from fastapi import FastAPI

from loadtests.peers.rivals.serving import Body, Served, end_with_input
from loadtests.peers.rivals.worker import Task, answer, own_output, pin, task_of


def app_of(task: Task) -> FastAPI:
    """The app of `task.variant`."""
    app = FastAPI()
    if task.variant == "floor":

        @app.post("/generate")
        async def floor(body: Body) -> dict[str, Any]:
            return task.answer

        return app
    served = Served(task.folder, task.answer)

    @app.post("/generate")
    async def generate(body: Body) -> dict[str, Any]:
        # On the event loop: a thread would cost latency, and there is one request at a time.
        return served.generate(body)

    return app


def main() -> None:
    """Serve on a free port of this machine until standard input ends."""
    answers = own_output()
    task = task_of(json.loads(sys.stdin.readline()))
    pin(task.cpus)
    try:
        app = app_of(task)
        listening = socket.create_server(("127.0.0.1", 0))
    except Exception as error:  # noqa: BLE001 - whatever the library raises is the row's reason
        answer(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    settings = {
        "server": "uvicorn[standard] (uvloop, httptools), one process, access log off",
        "model": "in the route, on the event loop" if task.variant == "inline" else "none",
        "cpus": task.cpus,
    }
    names = ["fastapi", "uvicorn", "torch", "transformers"]
    server = uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning"))
    # The socket listens already: a request that comes before the loop runs waits in its queue.
    port = listening.getsockname()[1]
    versions = {name: version(name) for name in names}
    answer(
        answers,
        {"url": f"http://127.0.0.1:{port}", "path": "/generate", "settings": settings, "versions": versions},
    )
    end_with_input()
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
