"""A bare FastAPI route in a process of its own: what answering costs without an engine, a queue or timings.

Started as `python -m service.proof.bare_route FILE`: it answers every generation with the JSON of FILE.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from service.front.launch import SERVING, LaunchError
from service.parent_death import owned

STOP_SECONDS = 10.0


class Generation(BaseModel):
    """The body that the checks send."""

    prompts: list[str]
    max_new_tokens: int
    ignore_eos: bool


def bare_app(answer: dict[str, Any]) -> FastAPI:
    """As FastAPI's own tutorial would write it: a validated body in, a dictionary out."""
    app = FastAPI()

    @app.post("/v1/modes/{mode}/generate")
    async def generate(mode: str, body: Generation) -> dict[str, Any]:
        return answer

    return app


@contextmanager
def bare_route(answer: bytes, folder: Path) -> Iterator[str]:
    """Run it on this process's cores until the block ends; gives its URL. `answer` is JSON.

    Raises LaunchError where it ends before it listens.
    """
    file = folder / "answer.json"
    file.write_bytes(answer)
    command = owned([sys.executable, "-m", "service.proof.bare_route", str(file)])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith(SERVING):
                raise LaunchError("the bare route ended before it listened")
            yield line.removeprefix(SERVING).strip()
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def main(arguments: list[str]) -> int:
    """Serve on a free port of this machine until SIGTERM."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"{SERVING}http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    app = bare_app(json.loads(Path(arguments[0]).read_bytes()))
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
