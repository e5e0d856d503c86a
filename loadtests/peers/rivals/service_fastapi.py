"""FastAPI on uvicorn: `inline` calls the model in the route, `floor` returns the same JSON without one.

Also what every rival server has: the model behind it, the answer it gives, and how long it lives.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from loadtests.peers.rivals.worker import Task, answer, own_output, pin, task_of


class Body(BaseModel):
    """The request, validated as a careful author would."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompts: list[str] = Field(min_length=1)
    max_new_tokens: int = Field(default=32, ge=1)
    ignore_eos: bool = False


class Served:
    """The exported model by `transformers`, one thread, greedy, under inference mode."""

    def __init__(self, folder: Path, template: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        # In evaluation mode already.
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        )
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._template = template

    def generate(self, body: Body) -> dict[str, Any]:
        """The answer as launchbound gives it, with the model call's seconds beside it.

        Tokenising and decoding are the service's work, not the model's.
        """
        prompts = [self._tokenizer.encode(prompt).ids for prompt in body.prompts]
        began = perf_counter()
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            found = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=body.max_new_tokens,
                eos_token_id=None,
                pad_token_id=0,
            )
        tokens = found[:, ids.shape[1] :].tolist()
        seconds = perf_counter() - began
        answered = copy.copy(self._template)
        answered["outputs"] = [
            {"text": text, "finish_reason": "length", "completion_tokens": len(row)}
            for text, row in zip(self._tokenizer.decode_batch(tokens), tokens, strict=True)
        ]
        answered["model_seconds"] = seconds
        return answered


def ready(port: int, path: str, settings: dict[str, Any], packages: Sequence[str]) -> dict[str, Any]:
    """What the driver is answered once the server takes requests."""
    versions = {name: version(name) for name in (*packages, "torch", "transformers")}
    return {"url": f"http://127.0.0.1:{port}", "path": path, "settings": settings, "versions": versions}


def end_with_input() -> None:
    """End this process and all that it started once standard input ends: the driver is done, or gone."""

    def wait() -> None:
        # Not through sys.stdin, whose lock a forked worker would inherit held, and wait for at its start.
        while os.read(0, 4096):
            pass
        os.killpg(os.getpgrp(), signal.SIGTERM)

    Thread(target=wait, daemon=True).start()


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
    server = uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning"))
    # The socket listens already: a request that comes before the loop runs waits in its queue.
    answer(answers, ready(listening.getsockname()[1], "/generate", settings, ["fastapi", "uvicorn"]))
    end_with_input()
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
