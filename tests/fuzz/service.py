"""The service that generated requests are sent to, with a key, and what its document declares."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from hypothesis import HealthCheck, seed, settings

from service.front.launch import launched
from tests.support.serving import FRESH, until
from tests.support.start_up import FEW_SAMPLES

VARIABLE = "FUZZ_SEED"
USUAL = "1"
"""A gate that finds something else each time would refuse a change for what it has not done."""

if os.environ.setdefault(VARIABLE, USUAL) == "random":
    os.environ[VARIABLE] = str(random.getrandbits(32))  # which the test workers inherit

SEED = int(os.environ[VARIABLE])


EVENTS = "text/event-stream"


Test = TypeVar("Test", bound=Callable[..., None])


def bounded(max_examples: int = 60) -> Callable[[Test], Test]:
    """As many examples of a test, those of SEED."""
    limits = settings(
        max_examples=max_examples,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    return lambda test: seed(SEED)(limits(test))


class Declared:
    """One document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def check(self, method: str, template: str, status: int, headers: Mapping[str, str], body: bytes) -> Any:
        """Check one answer of an operation; returns its JSON, and None where it has another type.

        `headers` are found in any case of their letters.
        """
        answers = self.document["paths"][template][method]["responses"]
        assert str(status) in answers, f"{method} {template} declares no {status}: {body[:300]!r}"
        declared = answers[str(status)]
        for name, header in declared.get("headers", {}).items():
            assert name in headers, f"{status} without {name}"
            wants_number = header["schema"]["type"] == "integer"
            self.conforms(int(headers[name]) if wants_number else headers[name], header["schema"])
        kind = headers["Content-Type"].partition(";")[0]
        assert kind in declared["content"], f"{kind} is not declared of {status}"
        if kind != "application/json":
            return None
        value = json.loads(body)
        self.conforms(value, declared["content"][kind]["schema"])
        return value

    def conforms(self, value: object, schema: dict[str, Any]) -> None:
        """Raise ValidationError where `value` does not fit `schema`, whose references are the document's."""
        from jsonschema import Draft202012Validator  # takes a second, which every collection would cost

        Draft202012Validator({**schema, "components": self.document["components"]}).validate(value)

    def conforms_to(self, name: str, value: object) -> None:
        """The same for a named schema."""
        self.conforms(value, {"$ref": f"#/components/schemas/{name}"})


def events(body: bytes) -> list[tuple[str, Any]]:
    """The events of a whole stream, as name and data; data that is no JSON stays text."""
    assert body.endswith(b"\n\n")
    found = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = fields["data"]
        found.append((fields.get("event", "message"), data if data == "[DONE]" else json.loads(data)))
    return found


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
