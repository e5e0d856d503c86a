"""What takes part in the rounds: a rival's process, a mode of the service, or a server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol
from urllib.parse import urlsplit

from loadtests.peers.process import RivalError, RivalProcess
from loadtests.peers.reference import ReferenceRow, difference, text_difference
from loadtests.peers.results import CallRow, ServiceRow

CALL_SECONDS = 300.0
"""A call may take so long: the first ones compile."""

IDLE_SECONDS = 2.0
"""A connection that was idle for longer is opened again: uvicorn closes its own after 5 s."""

UNTIMED = 3
"""Requests of a server's visit before those that count: other servers have used the core since the last."""


class Client:
    """One connection to `url`, kept open."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            parts.hostname or "127.0.0.1", parts.port, timeout=CALL_SECONDS
        )
        self._used = 0.0
        self._headers = {"Content-Type": "application/json", **(headers or {})}

    def generate(self, path: str, prompts: Sequence[str], new_tokens: int) -> tuple[dict[str, Any], float]:
        """Ask for `new_tokens` greedy tokens of each prompt, end of text ignored.

        Returns the answer, and the seconds from the first byte sent until all of it was read. Raises
        RivalError where it is not a JSON object with status 200.
        """
        wanted = {"prompts": list(prompts), "max_new_tokens": new_tokens, "ignore_eos": True}
        body = json.dumps(wanted).encode()
        try:
            if perf_counter() - self._used > IDLE_SECONDS:
                self._connection.close()
            if self._connection.sock is None:
                self._connection.connect()
            began = perf_counter()
            self._connection.request("POST", path, body, self._headers)
            response = self._connection.getresponse()
            content = response.read()
            self._used = perf_counter()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise RivalError(f"no answer to POST {path}: {error}") from error
        if response.status != 200:
            raise RivalError(f"POST {path} answered {response.status}: {content[:200]!r}")
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise RivalError(f"POST {path} answered no JSON object: {content[:200]!r}")
        return document, self._used - began

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Called:
    """One call. `steps_seconds` and `latency_seconds` are a mode's only, as in `CallRow`."""

    seconds: float
    difference: str | None
    steps_seconds: float | None = None
    latency_seconds: float | None = None


class Caller(Protocol):
    """A contestant of the model call."""

    def call(self, rows: Sequence[ReferenceRow]) -> Called:
        """Continue the prompts of `rows`. Raises RivalError where that fails."""


@dataclass(frozen=True, slots=True)
class RuntimeCaller:
    """A rival's process."""

    process: RivalProcess

    def call(self, rows: Sequence[ReferenceRow]) -> Called:
        """From token ids to token ids, timed by the rival itself around the whole call."""
        new_tokens = len(rows[0].completion_tokens)
        asked = {"tokens": [row.prompt_tokens for row in rows], "new_tokens": new_tokens}
        answer = self.process.ask(asked, CALL_SECONDS)
        try:
            return Called(float(answer["seconds"]), difference(answer["tokens"], rows))
        except (KeyError, TypeError, ValueError) as error:
            raise RivalError(f"answered without seconds or tokens: {str(answer)[:200]}") from error


@dataclass(frozen=True, slots=True)
class ModeCaller:
    """The mode of the running service at `path`."""

    path: str
    client: Client

    def call(self, rows: Sequence[ReferenceRow]) -> Called:
        """One request with the prompts as text; `call_seconds` of its timings is the whole call."""
        prompts = [row.prompt for row in rows]
        document, latency = self.client.generate(self.path, prompts, len(rows[0].completion_tokens))
        timings = document["timings"]
        texts = [output["text"] for output in document["outputs"]]
        return Called(call_seconds(timings), text_difference(texts, rows), steps_seconds(timings), latency)


def call_visit(name: str, caller: Caller, rows: Sequence[ReferenceRow], calls: int, number: int) -> CallRow:
    """One untimed call, which fetches code and weights into the caches, then `calls` timed ones.

    Every call's tokens are checked; the first difference is kept. Raises RivalError where a call fails.
    """
    warm = caller.call(rows)
    timed = [caller.call(rows) for _ in range(calls)]
    found = [called.difference for called in (warm, *timed) if called.difference is not None]
    return CallRow(
        round=number,
        contestant=name,
        batch=len(rows),
        seconds=[called.seconds for called in timed],
        steps_seconds=_all([called.steps_seconds for called in timed]),
        latency_seconds=_all([called.latency_seconds for called in timed]),
        difference=found[0] if found else None,
    )


def _all(values: Sequence[float | None]) -> list[float] | None:
    """The values where every call has one, else None."""
    known = [value for value in values if value is not None]
    return known if known and len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `runs_model` False: the floor, whose answer is always the same."""

    client: Client
    path: str
    runs_model: bool = True


def server_visit(name: str, server: Server, row: ReferenceRow, requests: int, number: int) -> ServiceRow:
    """`requests` timed requests with the prompt of `row`, batch 1, after some untimed ones.

    Raises RivalError where one fails or answers another text than the reference.
    """
    asked = server.path, [row.prompt], len(row.completion_tokens)
    answers = [server.client.generate(*asked) for _ in range(UNTIMED + requests)][UNTIMED:]
    documents = [document for document, _ in answers]
    for document in documents:
        texts = [output["text"] for output in document["outputs"]]
        if (found := text_difference(texts, [row])) is not None:
            raise RivalError(f"another text: {found}")
    measured = [_model(server, document) for document in documents]
    return ServiceRow(
        round=number,
        contestant=name,
        latency_seconds=[seconds for _, seconds in answers],
        model_seconds=_all([model for model, _ in measured]),
        call_seconds=_all([call for _, call in measured]),
    )


def _model(server: Server, document: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Seconds of the model's steps or of `generate`; and, of the service, of the whole call."""
    if not server.runs_model:
        return None, None
    if "model_seconds" in document:
        return float(document["model_seconds"]), None
    return steps_seconds(document["timings"]), call_seconds(document["timings"])


def steps_seconds(timings: Mapping[str, Any]) -> float:
    """The steps of prefill and decode alone. Raises RivalError where the service does not measure them."""
    walls = [timings[phase]["wall_seconds"] for phase in ("prefill", "decode")]
    if None in walls:
        raise RivalError("the service measures no steps: start it without LAUNCHBOUND_INSTRUMENTATION=off")
    return float(sum(walls))


def call_seconds(timings: Mapping[str, Any]) -> float:
    """The whole call: total less queue, border, tokenising and the front's own work.

    Beside the steps this holds what the engine does between them and the decoding of the text: an upper
    estimate, at our own expense.
    """
    steps_seconds(timings)
    outside = ("queue_seconds", "border_seconds", "front_seconds", "tokenise_seconds")
    return float(timings["total_seconds"] - sum(timings[part] for part in outside))
