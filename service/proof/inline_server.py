"""A server as FastAPI's tutorial would write it, with the model in its own process: the least that serves.

Started as `python -m service.proof.inline_server SETTINGS`, with `EngineSettings` as JSON. It validates a
body, tokenises, runs the steps of its first mode one prompt at a time, and answers JSON: text, tokens and the
wall time of its steps. Nothing is queued, limited, streamed, logged, sampled or counted.
"""

from __future__ import annotations

import socket
import sys
from itertools import count
from time import perf_counter
from typing import Any

import msgspec
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from service.front.launch import SERVING
from service.modes import MODES
from service.records import EngineSettings
from service.step.buffers import Arguments, allocate
from service.step.callables import Step, build_step
from service.step.loaded_model import load_model
from service.step.process_state import prepare_process


class Generation(BaseModel):
    prompts: list[str]
    max_new_tokens: int
    ignore_eos: bool


class Generator:
    """Completes one prompt greedily. Raises ValueError for settings that cannot work."""

    def __init__(self, settings: EngineSettings) -> None:
        loaded = load_model(settings)
        self._tokenizer = loaded.opened.tokenizer(loaded.model.config.vocabulary)
        self._buffers = allocate(loaded.model, [1], settings.prefill_chunk, loaded.precision.cache)[1]
        mode = MODES[settings.modes[0]]
        # Each is compiled for its own shapes, where the mode compiles.
        self._prefill, self._decode = (
            build_step(mode, loaded.model, precision=loaded.precision) for _ in range(2)
        )

    def run(self, prompt: str, new_tokens: int) -> dict[str, Any]:
        """The answer. `wall_seconds` are those within steps, on CUDA until the device is done."""
        buffers, ids = self._buffers, self._tokenizer.encode(prompt)
        chunk = buffers.chunks[buffers.padded(len(ids))]
        chunk.zero_()
        chunk[0, : len(ids)] = torch.tensor(ids)
        buffers.positions.zero_()
        buffers.last.fill_(len(ids) - 1)
        token, prefill = _timed(self._prefill, buffers.arguments("prefill", chunk.shape[1]))
        tokens, decode = [token], 0.0
        for position in count(len(ids)):
            if len(tokens) == new_tokens:
                break
            buffers.token.fill_(tokens[-1])
            buffers.positions.fill_(position)
            buffers.last.zero_()
            arguments = buffers.arguments("decode", reach=buffers.reach(position + 1))
            token, seconds = _timed(self._decode, arguments)
            tokens.append(token)
            decode += seconds
        return {
            "outputs": [{"text": self._tokenizer.decode(tokens), "token_ids": tokens}],
            "timings": {"prefill": {"wall_seconds": prefill}, "decode": {"wall_seconds": decode}},
        }


def _timed(step: Step, arguments: Arguments) -> tuple[int, float]:
    """The greedy token of a step, and its seconds."""
    began = perf_counter()
    _, greedy = step(*arguments)
    if greedy.is_cuda:
        torch.cuda.synchronize()
    seconds = perf_counter() - began
    return int(greedy), seconds


def main(settings: EngineSettings) -> None:
    prepare_process(settings.cache_folder, settings.model)
    generator = Generator(settings)
    app = FastAPI()

    @app.post("/v1/modes/{mode}/generate")
    async def generate(mode: str, body: Generation) -> dict[str, Any]:
        return generator.run(body.prompts[0], body.max_new_tokens)

    listener = socket.create_server(("127.0.0.1", 0))
    print(f"{SERVING}http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=EngineSettings))
