"""A client that hangs up ends its generation long before its last token."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import msgspec
import pytest

from service.front.engine_client import EngineClient
from service.records import Outcome, ToFront
from tests.support.serving import Front, running, until
from tests.support.start_up import FEW_SAMPLES

PROMPT = "def mean(values):\n"
WHOLE = 480
"""Tokens that fill tiny's context; at batch 16 they keep the engine busy for seconds."""


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
