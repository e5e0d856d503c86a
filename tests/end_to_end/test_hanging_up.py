"""A client that hangs up ends its generation at the next poll, and over HTTP long before its last token."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import pytest
import torch
from torch import Tensor

from models.checkpoint import TINY_FOLDER, build
from models.tokenizer import Tokenizer
from service.engine import generation
from service.engine.generation import Generator, JobResult
from service.engine.inbox import local_job
from service.front.engine_client import EngineClient
from service.modes import MODES
from service.records import Cancel, Job, Outcome, ToFront
from service.step.buffers import allocate
from service.step.callables import Step, build_step
from service.step.meters import HostMeter
from tests.engine.sockets import SocketPair
from tests.support.serving import Front, running, until
from tests.support.start_up import FEW_SAMPLES

PROMPT = "def mean(values):\n"
WHOLE = 480
"""Tokens that fill tiny's context; at batch 16 they keep the engine busy for seconds."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[SocketPair]:
    made = SocketPair(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancel_during_a_step_ends_the_generation_at_the_next_poll(
    pair: SocketPair, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "POLL_NS", 0)  # polls between any two steps, however fast they are here
    torch.set_num_threads(1)
    model, tokenizer = build("tiny", max_batch=1), Tokenizer.load(TINY_FOLDER)
    buffers = allocate(model, [1], prefill_chunk=64)
    generator = Generator(tokenizer, buffers, model.config.context, pair.inbox)
    step = build_step(MODES["inference_mode"], model)
    for at in (1, 2, 7, 8):
        job = local_job(f"j{at}", "inference_mode", [PROMPT], 60, ignore_eos=True, stream=stream)
        pair.deliver(job)
        assert pair.inbox.take() == job
        run, taken = JobResult(), 0

        def cancelling(*arguments: Tensor, job: Job = job, at: int = at) -> tuple[Tensor, Tensor]:
            nonlocal taken
            taken += 1
            if taken == at:
                pair.send(Cancel(id=job.id))
                assert pair.inbox._stream.wait(10_000), "the Cancel did not arrive"
            return step(*arguments)

        steps: dict[tuple[str, int], Step] = {("prefill", 1): step, ("decode", 1): cancelling}
        with torch.no_grad():
            generator.run(job, steps, run, HostMeter())
        assert run.kind == "cancelled"
        assert taken == at


class Recorded(NamedTuple):
    front: Front
    outcomes: list[Outcome]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A real engine of `tiny` behind a front that keeps what it hears of requests."""
    outcomes: list[Outcome] = []
    received = EngineClient.received

    def recording(client: EngineClient, frame: bytes) -> None:
        message: ToFront = msgspec.msgpack.decode(frame, type=ToFront)
        if isinstance(message, Outcome):
            outcomes.append(message)
        received(client, frame)

    cache = str(tmp_path_factory.mktemp("cache"))
    settings = {"modes": ["eager"], "batch_sizes": [16], "cache_folder": cache}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineClient, "received", recording)
        patch.setenv("PYTHONPATH", FEW_SAMPLES["PYTHONPATH"])
        with running(settings, [sys.executable, "-m", "service.engine.process"]) as front:
            front.await_ready()
            yield Recorded(front, outcomes)


ROUTES = {
    "/v1/modes/eager/generate": {"prompts": [PROMPT] * 16, "max_new_tokens": WHOLE},
    "/v1/completions": {"model": "tiny:eager", "prompt": [PROMPT] * 16, "max_tokens": WHOLE},
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", ROUTES)
def test_hanging_up_over_http_leaves_most_tokens_ungenerated(
    recorded: Recorded, route: str, stream: bool
) -> None:
    """After the first token of a stream, and in the middle of a request that shows none."""
    front, outcomes = recorded
    cancelled = 'requests_total{mode="eager",outcome="cancelled"}'
    before, ended = front.series()[cancelled], len(outcomes)
    body, url = {**ROUTES[route], "ignore_eos": True, "stream": stream}, f"{front.url}{route}"
    if stream:
        with httpx.stream("POST", url, json=body, trust_env=False, timeout=60.0) as answer:
            next(answer.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, trust_env=False, timeout=0.1)
    (outcome,) = until(lambda: outcomes[ended:], "the outcome of the cancelled request")
    assert outcome.kind == "cancelled"
    assert all(int(stream) <= output.completion_tokens < WHOLE / 4 for output in outcome.outputs)
    until(lambda: front.series()[cancelled] == before + 1, "the cancelled request to be counted")
