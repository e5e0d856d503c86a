"""Record what the OpenAPI document shows as answers: `python -m tests.support.openapi_examples [URL]`.

At URL a fresh service serves the modes eager, inference_mode and compiled, with a results folder that has one
sweep. Without one only the answers of a module are recorded anew, by the fake engine. A list within an answer
is cut to its first MOST items, a text to its first MOST_CHARACTERS.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from service.front.routes.pages import EXAMPLES_FILE
from service.front.schemas import COMPLETION_EXAMPLE, EXAMPLE, STUDY_BODIES
from tests.support.serving import running

MOST = 3
MOST_CHARACTERS = 2500


def answers(http: httpx.Client) -> Iterator[tuple[str, httpx.Response]]:
    """Operation id and answer of every call, in an order in which each finds what it reads."""
    short = {**EXAMPLE, "max_new_tokens": 4}
    for stream in (False, True):
        yield "generate", http.post("/v1/modes/compiled/generate", json={**short, "stream": stream})
        yield "generate_auto", http.post("/v1/modes/auto/generate", json={**short, "stream": stream})
        completion = {**COMPLETION_EXAMPLE, "max_tokens": 4, "stream": stream}
        yield "completions", http.post("/v1/completions", json=completion)
    http.post("/v1/modes/eager/generate", json={**short, "profile": True})
    modes = ["eager", "inference_mode", "compiled"]
    yield "compare", http.post("/v1/compare", json={**short, "modes": modes})
    for name in STUDY_BODIES:
        body = {"mode": "eager"} if name == "operators" else {}
        for accept in ("application/json", "text/event-stream"):
            found = http.post(f"/v1/studies/{name}", json=body, headers={"Accept": accept})
            yield f"run_{name.replace('-', '_')}", found
    yield "probe", http.post("/v1/probes/hidden-copy", json={})
    for name in ("models", "modes", "probes", "studies", "traces", "runs", "advice"):
        yield name, http.get(f"/v1/{name}")
    yield "anatomy", http.get("/v1/modes/eager/anatomy")
    kept = next(one for one in http.get("/v1/studies").json()["studies"] if one["files"])
    yield "study", http.get(f"/v1/studies/{kept['id']}")
    yield "file", http.get(f"/v1/studies/{kept['id']}/files/{kept['files'][0]}")
    yield "read_trace", http.get(f"/v1/traces/{http.get('/v1/traces').json()['traces'][0]['id']}")
    yield "report", http.get(f"/v1/runs/{http.get('/v1/runs').json()['runs'][0]['name']}/report")
    for name, path in {"live": "/health/live", "ready": "/health/ready", "health": "/health"}.items():
        yield name, http.get(path)
    for accept in ("text/plain", "application/openmetrics-text"):
        yield "metrics", http.get("/metrics", headers={"Accept": accept})


def answers_of_a_module(http: httpx.Client) -> Iterator[tuple[str, httpx.Response]]:
    """Those that differ from a language model's."""
    body = {"batch_size": 1, "calls": 2}
    for operation, mode in {"forward": "eager", "forward_auto": "auto"}.items():
        yield f"forward/{operation}", http.post(f"/v1/modes/{mode}/forward", json={**body, "outputs": True})
    yield "forward/compare", http.post("/v1/compare", json=body)
    yield "forward/modes", http.get("/v1/modes")
    yield "forward/advice", http.get("/v1/advice", params={"batch_size": 1})


def record(recorded: dict[str, dict[str, Any]], found: Iterator[tuple[str, httpx.Response]]) -> None:
    for operation, answer in found:
        kind = answer.raise_for_status().headers["Content-Type"].partition(";")[0]
        recorded.setdefault(operation, {})[kind] = shown(answer, kind)


def shown(answer: httpx.Response, kind: str) -> Any:
    if kind == "application/octet-stream":
        return f"{len(answer.content)} bytes, gzip"
    return cut(answer.json() if kind == "application/json" else answer.text)


def cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: cut(one) for name, one in value.items()}
    if isinstance(value, list):
        return [cut(one) for one in value[:MOST]]
    return value[:MOST_CHARACTERS] if isinstance(value, str) else value


if __name__ == "__main__":
    examples: dict[str, dict[str, Any]] = json.loads(EXAMPLES_FILE.read_text(encoding="utf-8"))
    if len(sys.argv) > 1:
        with httpx.Client(base_url=sys.argv[1], timeout=600) as client:
            record(examples, answers(client))
    with running({"model": "ranker.py:build", "modes": ["eager", "inference_mode"]}) as front:
        front.await_ready()
        record(examples, answers_of_a_module(front.http))
    text = json.dumps(dict(sorted(examples.items())), indent=1, ensure_ascii=False)
    EXAMPLES_FILE.write_text(text + "\n", encoding="utf-8")
