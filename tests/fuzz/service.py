"""The service that generated requests are sent to: two plain modes of the real engine, and a key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from service.front.launch import launched
from tests.fuzz.declared import Declared
from tests.support.serving import FRESH, until
from tests.support.start_up import FEW_SAMPLES

KEY = "generated"
MODES = ("eager", "inference_mode")
LARGEST_BATCH = 4
VOCABULARY = 4096
"""Tokens that `tiny` has: another one is the engine's 422, which no schema can know."""

PATIENCE_SECONDS = 240.0
GENERATE = "/v1/modes/{mode}/generate"
SAMPLED = {"temperature": 0.8, "seed": 5}
GOOD: tuple[tuple[str, dict[str, object]], ...] = (
    ("/v1/modes/eager/generate", {"prompts": ["def mean(values):"], "max_new_tokens": 8}),
    ("/v1/modes/inference_mode/generate", {"prompts": ["import os", "a"], "max_new_tokens": 8, **SAMPLED}),
    ("/v1/completions", {"model": "tiny:eager", "prompt": [5, 6], "n": 2, "max_tokens": 8, **SAMPLED}),
)
_TIMES = re.compile(rb'"created":\d+|"timings":\{.*')
"""Timings come last in every answer."""


class Fuzzed:
    """A running service: its document, and what it answered before anything strange was sent to it."""

    def __init__(self, url: str, http: httpx.Client, log: Path) -> None:
        self.url, self.http, self.log = url, http, log
        self.declared = Declared(http.get("/openapi.json").json())
        self._engine = self.engine()
        self._fresh = self.good_answers()

    def engine(self) -> int:
        """The pid of the engine."""
        return int(self.http.get("/v1/modes").json()["engine"]["pid"])

    def good_answers(self) -> list[bytes]:
        """The answers to GOOD without their times; the ids are given."""
        answers = []
        for path, body in GOOD:
            answer = self.http.post(path, json=body, headers={"X-Request-ID": "good"})
            assert answer.status_code == 200, answer.text
            answers.append(_TIMES.sub(b"", answer.content))
        return answers

    def check_unharmed(self) -> None:
        """The engine is the first one, and answers byte for byte as it did when it was fresh."""
        assert self.engine() == self._engine
        assert self.good_answers() == self._fresh

    def check_log(self) -> None:
        """No engine was started again, and nothing was raised that no handler knows."""
        assert "launchbound_engine_restarts_total 0.0" in self.http.get("/metrics", headers=FRESH).text
        assert "Traceback" not in self.log.read_text(errors="replace")

    def check(self, answer: httpx.Response, template: str) -> Any:
        """Check an answer against what the document declares of `template`; returns JSON as its value."""
        method = answer.request.method.lower()
        assert answer.status_code < 500, answer.text
        return self.declared.check(method, template, answer.status_code, answer.headers, answer.content)


@contextmanager
def started(folder: Path, model: Path, cache: Path) -> Iterator[Fuzzed]:
    """A service of `model`, which is called `tiny`, with its log in `folder`."""
    options = [f"--modes={','.join(MODES)}", f"--batch-sizes=1,{LARGEST_BATCH}", "--device=cpu"]
    environment = {
        "LAUNCHBOUND_CACHE_FOLDER": str(cache),
        "LAUNCHBOUND_MODEL": str(model),
        "LAUNCHBOUND_API_KEY": KEY,
        **FEW_SAMPLES,
    }
    headers = {"Authorization": f"Bearer {KEY}"}
    log = folder / "log"
    with (
        launched(options, log, environment) as url,
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False) as http,
    ):
        until(lambda: http.get("/health/ready").status_code == 200, "all modes ready", PATIENCE_SECONDS)
        yield Fuzzed(url, http, log)
