"""A bare FastAPI route in a process of its own: what answering costs without an engine, a queue or timings.

Started as `python -m service.proof.bare_route`: it answers every generation with the JSON that it is given.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from service.front.launch import SERVING, LaunchError
from service.parent_death import owned


class Generation(BaseModel):
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
def bare_route(answer: bytes) -> Iterator[str]:
    """Run it on this process's cores until the block ends; gives its URL. `answer` is JSON.

    Raises LaunchError where it ends before it listens.
    """
    command = owned([sys.executable, "-m", "service.proof.bare_route"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(answer)
            process.stdin.close()
            line = process.stdout.readline().decode()
            if not line.startswith(SERVING):
                raise LaunchError("the bare route ended before it listened")
            yield line.removeprefix(SERVING).strip()
        finally:
            process.kill()


def main() -> None:
    answer = json.load(sys.stdin)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"{SERVING}http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        bare_app(answer), loop="uvloop", http="httptools", log_config=None, access_log=False
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
