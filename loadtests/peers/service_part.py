"""What a service adds to its model call: requests to servers in turn, one connection each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from loadtests.peers.client import Client, generate_body
from loadtests.peers.contestants import call_seconds, steps_seconds
from loadtests.peers.process import RivalError
from loadtests.peers.reference import ReferenceRow, text_difference
from loadtests.peers.results import ServiceRow
from loadtests.peers.rounds import Listener

UNTIMED = 3
"""Requests of a visit before those that count: other servers have used the core since the last visit."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `runs_model` False: the floor, whose answer is always the same."""

    name: str
    client: Client
    path: str
    runs_model: bool = True


def visit(server: Server, row: ReferenceRow, requests: int, number: int) -> ServiceRow:
    """`requests` timed requests with the prompt of `row`, batch 1, after some untimed ones.

    Raises RivalError where one fails or answers another text than the reference.
    """
    body = generate_body([row.prompt], len(row.completion_tokens))
    answers = [server.client.post(server.path, body) for _ in range(UNTIMED + requests)][UNTIMED:]
    for answer in answers:
        texts = [output["text"] for output in answer.document["outputs"]]
        if (found := text_difference(texts, [row])) is not None:
            raise RivalError(f"another text: {found}")
    measured = [_model(server, answer.document) for answer in answers]
    calls = [call for _, call in measured if call is not None]
    return ServiceRow(
        round=number,
        contestant=server.name,
        latency_seconds=[answer.seconds for answer in answers],
        model_seconds=[steps for steps, _ in measured if steps is not None] or None,
        call_seconds=calls or None,
    )


def _model(server: Server, document: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Seconds of the model's steps or of `generate`; and, of the service, of the whole call."""
    if not server.runs_model:
        return None, None
    if "model_seconds" in document:
        return float(document["model_seconds"]), None
    return steps_seconds(document["timings"]), call_seconds(document["timings"])


def run_service_rounds(
    servers: Sequence[Server],
    row: ReferenceRow,
    rounds: int,
    requests: int,
    seed: int,
    listener: Listener[ServiceRow],
) -> None:
    """Visit every server once per round, in an order of its own, as `run_rounds` does."""
    able = {server.name: server for server in servers}
    for number in range(rounds):
        listener.began(number)
        names = sorted(able)
        Random(f"servers/{seed}/{number}").shuffle(names)
        for name in names:
            try:
                listener.keep(visit(able[name], row, requests, number))
            except RivalError as error:
                del able[name]
                listener.failed(name, f"from round {number} on: {error}")
        listener.ended(number)
