"""One request of a cell, its response, and the row of `requests.jsonl` made from both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loadtests.plan.cells import Cell, Plan
from loadtests.plan.prompts import draw, select
from loadtests.run.rows import Stage

Examined = Literal["profile", "sample"]
"""What the service does to a request that makes it slower: runs it under its profiler, samples its steps."""


def can_sample(engine: Mapping[str, Any]) -> bool:
    """Whether a service whose engine says this of itself samples a request that asks for it."""
    return "no_samples" in engine and engine["no_samples"] is None


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The `index`-th request of a cell in a round.

    `intended` is when it is due, in seconds on the client's monotonic clock; None: at once.
    """

    cell: Cell
    round: int
    index: int
    stage: Stage
    id: str
    body: str
    intended: float | None = None

    @property
    def path(self) -> str:
        """The path to POST to."""
        return f"/v1/modes/{self.cell.mode}/generate"


@dataclass(frozen=True, slots=True)
class LoadResponse:
    """The response: `status` 0 and no body where there was none. `started` is on the clock of `intended`.

    `worker` numbers the load process that posted the request; None: the load generator did.
    """

    started: float
    latency_seconds: float
    status: int
    body: str | None
    failure: str | None
    worker: int | None = None


def body(
    plan: Plan,
    texts: Sequence[str],
    cell: Cell,
    number: int,
    index: int,
    examined: Examined | None = None,
) -> str:
    """The JSON of the `index`-th request of `cell` in round `number`, `examined` by the service or not.

    Prompts depend on seed, round, index, batch and prompt set, not on the mode: within a round all modes get
    the same prompts.
    """
    seed = f"prompts/{plan.seed}/{number}/{index}/{cell.batch_size}/{cell.prompt_set}"
    prompts = draw(select(list(texts), cell.prompt_set), cell.batch_size, seed)
    content = {"prompts": prompts, "max_new_tokens": cell.new_tokens, "ignore_eos": True}
    return json.dumps(content if examined is None else {**content, examined: True})


def row(
    run: str, part: int, sequence: int, request: LoadRequest, response: LoadResponse, clock_offset: float
) -> dict[str, Any]:
    """The row of `requests.jsonl`; `clock_offset` turns the client's clock into Unix seconds."""
    cell = request.cell
    document = _document(response)
    named = document.get("mode", {})
    ok = response.status == 200 and response.failure is None and "timings" in document
    intended = response.started if request.intended is None else request.intended
    fields: dict[str, Any] = {
        "run": run,
        "cell": cell.name,
        "control": cell.control,
        "round": request.round,
        "part": part,
        "sequence": sequence,
        "index": request.index,
        "stage": request.stage,
        "mode": cell.mode,
        "effective_mode": named.get("effective"),
        "batch_size": cell.batch_size,
        "prompt_set": cell.prompt_set,
        "new_tokens": cell.new_tokens,
        "concurrency": cell.concurrency,
        "load": cell.load,
        "rate": cell.rate,
        "worker": response.worker,
        "request_id": request.id,
        "intended_start": clock_offset + intended,
        "start": clock_offset + response.started,
        "latency_seconds": response.latency_seconds,
        "latency_from_intended_seconds": response.latency_seconds + max(0.0, response.started - intended),
        "status": response.status,
        "error": None if ok else _error(response, document),
    }
    if "picked" in named:
        fields["picked_mode"] = named["picked"]
    if ok:
        usage = document.get("usage", {})
        fields |= {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
        fields |= {"batch_bucket": document.get("batch_bucket"), "device": document.get("device")}
        fields["text_digest"] = _text_digest(document)
        fields |= {name: value for name, value in document["timings"].items() if name not in fields}
    return fields


def _text_digest(document: dict[str, Any]) -> str:
    """64 bits of the SHA-256 of the completions' texts, in their order."""
    texts = [output.get("text") for output in document.get("outputs", [])]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _document(response: LoadResponse) -> dict[str, Any]:
    try:
        document = json.loads(response.body or "{}")
    except ValueError:
        return {}
    if not isinstance(document, dict) or not isinstance(document.get("mode", {}), dict):
        return {}
    return document


def _error(response: LoadResponse, document: dict[str, Any]) -> str:
    """The service's error message where it sent one, else the client's own error."""
    error = document.get("error")
    if isinstance(error, dict) and error.get("message"):
        return str(error["message"])
    return (
        response.failure
        or f"status {response.status} with a body that is no result: {(response.body or '')[:200]}"
    )
