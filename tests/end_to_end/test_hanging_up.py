"""A client that hangs up ends its generation at the next look, and over HTTP long before its last token."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import torch
from torch import Tensor

from models.checkpoint import TINY_FOLDER, build
from models.tokenizer import Tokenizer
from service.engine import generation
from service.engine.generation import Generator, JobResult
from service.engine.inbox import Inbox, local_job
from service.frames import FrameStream, listen
from service.front.engine_client import EngineClient
from service.modes import MODES
from service.records import Cancel, Job, Outcome, ToFront
from service.step.buffers import allocate
from service.step.callables import Step, build_step
from service.step.meters import HostMeter
from tests.support.serving import running, until

PROMPT = "def mean(values):\n"
WHOLE = 480
"""Tokens that fill tiny's context; at batch 16 they keep the engine busy for seconds."""


class SocketPair:
    """Both ends of the engine's socket: its inbox, and a front that cancels on call."""

    def __init__(self, folder: Path) -> None:
        listener = listen(str(folder / "engine.sock"))
        self.inbox = Inbox(str(folder / "engine.sock"))
        self.front = FrameStream(listener.accept()[0])
        listener.close()

    def take(self, job: Job) -> Job:
        """Send `job`, and take it as the engine does."""
        self.front.send(msgspec.msgpack.encode(job))
        self.inbox.receive(10_000)
        taken = self.inbox.take()
        assert taken is not None
        return taken

    def cancel(self, job: Job) -> None:
        """Send a Cancel and wait, without taking it in, until it is at the inbox."""
        self.front.send(msgspec.msgpack.encode(Cancel(id=job.id)))
        assert self.inbox._stream.wait(10_000), "the Cancel did not arrive"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[SocketPair]:
    made = SocketPair(tmp_path)
    yield made
    made.inbox.close()
    made.front.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancel_during_a_step_ends_the_generation_at_the_next_look(
    pair: SocketPair, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "POLL_NS", 0)  # a look between any two steps, however fast they are here
    torch.set_num_threads(1)
    model, tokenizer = build("tiny", max_batch=1), Tokenizer.load(TINY_FOLDER)
    buffers = allocate(model, [1], prefill_chunk=64)
    generator = Generator(tokenizer, buffers, model.config.context, pair.inbox)
    step = build_step(MODES["inference_mode"], model)
    for at in (1, 2, 7, 8):
        job = pair.take(local_job(f"j{at}", "inference_mode", [PROMPT], 60, ignore_eos=True, stream=stream))
        run, taken = JobResult(), 0

        def cancelling(*arguments: Tensor, job: Job = job, at: int = at) -> tuple[Tensor, Tensor]:
            nonlocal taken
            taken += 1
            if taken == at:
                pair.cancel(job)
            return step(*arguments)

        steps: dict[tuple[str, int], Step] = {("prefill", 1): step, ("decode", 1): cancelling}
        with torch.no_grad():
            generator.run(job, steps, run, HostMeter())
        assert run.kind == "cancelled"
        assert taken == at


def test_hanging_up_over_http_after_the_first_token_leaves_most_tokens_ungenerated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcomes: list[Outcome] = []
    received = EngineClient.received

    def recorded(client: EngineClient, frame: bytes) -> None:
        message: ToFront = msgspec.msgpack.decode(frame, type=ToFront)
        if isinstance(message, Outcome):
            outcomes.append(message)
        received(client, frame)

    monkeypatch.setattr(EngineClient, "received", recorded)
    settings = {"modes": ["eager"], "batch_sizes": [16], "cache_folder": str(tmp_path)}
    with running(settings, [sys.executable, "-m", "service.engine.process"]) as front:
        front.await_ready()
        body = {"prompts": [PROMPT] * 16, "max_new_tokens": WHOLE, "ignore_eos": True, "stream": True}
        url = f"{front.url}/v1/modes/eager/generate"
        with httpx.stream("POST", url, json=body, trust_env=False, timeout=60.0) as answer:
            next(answer.iter_lines())
        (outcome,) = until(lambda: outcomes, "the outcome of the cancelled request")
        assert outcome.kind == "cancelled"
        assert all(1 <= output.completion_tokens < WHOLE / 4 for output in outcome.outputs)
        cancelled = 'requests_total{mode="eager",outcome="cancelled"}'
        until(lambda: front.series()[cancelled] == 1, "the cancelled request to be counted")
