"""LitServe: its HTTP process and one worker process that holds the model."""

# No postponed annotations here: LitServe reads the type of `decode_request`'s parameter as it stands.
import json
import socket
import sys
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any
from urllib.request import urlopen

import litserve

from loadtests.peers.rivals.service_fastapi import Body, Served, end_with_input, ready
from loadtests.peers.rivals.worker import Task, answer, own_output, pin, task_of

START_SECONDS = 90.0


class Api(litserve.LitAPI):  # type: ignore[misc]
    """The four hooks that LitServe asks for; the model is loaded in the worker."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._task = {"folder": str(task.folder), "cpus": task.cpus, "answer": task.answer}

    def setup(self, device: str) -> None:
        """In the worker process: pin it, and load the model."""
        task: dict[str, Any] = self._task
        pin(task["cpus"])
        self._served = Served(Path(task["folder"]), task["answer"])

    def decode_request(self, request: Body) -> Body:
        """The body, validated by its type."""
        return request

    def predict(self, x: Body) -> dict[str, Any]:
        """The model call, tokenising included."""
        return self._served.generate(x)

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        """Nothing is left to do."""
        return output


def main() -> None:
    """Serve on a free port of this machine until standard input ends."""
    answers = own_output()
    task = task_of(json.loads(sys.stdin.readline()))
    pin(task.server_cpus or task.cpus)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    settings = {
        "server": "LitServer, accelerator cpu, one worker, one API server, fast queue, no batching",
        "model": "in the worker process",
        "cpus": {"server": task.server_cpus or task.cpus, "worker": task.cpus},
    }
    document = ready(port, "/predict", settings, ["litserve", "fastapi", "uvicorn"])
    Thread(target=_announce, args=(answers, document), daemon=True).start()
    end_with_input()
    server = litserve.LitServer(
        Api(task), accelerator="cpu", workers_per_device=1, timeout=300, fast_queue=True, track_requests=False
    )
    server.run(
        host="127.0.0.1", port=port, num_api_servers=1, generate_client_file=False, log_level="warning"
    )


def _announce(answers: Any, document: dict[str, Any]) -> None:  # noqa: ANN401
    """Answer the driver once the worker is up, or say that it did not come."""
    for _ in range(int(START_SECONDS / 0.2)):
        try:
            with urlopen(f"{document['url']}/health", timeout=5) as response:
                if response.status == 200:
                    answer(answers, document)
                    return
        except OSError:
            pass  # not listening yet, or not ready: asked again
        sleep(0.2)
    answer(answers, {"error": f"not healthy after {START_SECONDS:.0f} s"})


if __name__ == "__main__":
    main()
