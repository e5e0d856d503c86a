"""What takes part in the rounds: a mode of the service over HTTP, or a rival's process over its pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loadtests.peers.client import Client, generate_body
from loadtests.peers.process import RivalError, RivalProcess
from loadtests.peers.reference import ReferenceRow, difference, text_difference

CALL_SECONDS = 300.0
"""A call may take so long: the first ones compile."""


@dataclass(frozen=True, slots=True)
class Called:
    """One call. `steps_seconds` and `latency_seconds` are a mode's only, as in `CallRow`."""

    seconds: float
    difference: str | None
    steps_seconds: float | None = None
    latency_seconds: float | None = None


class Caller(Protocol):
    """A contestant that can be called."""

    @property
    def name(self) -> str:
        """As in the tables."""

    def call(self, rows: Sequence[ReferenceRow]) -> Called:
        """Continue the prompts of `rows`. Raises RivalError where that fails."""


class RuntimeCaller:
    """A rival's process."""

    def __init__(self, name: str, process: RivalProcess) -> None:
        self.name = name
        self._process = process

    def call(self, rows: Sequence[ReferenceRow]) -> Called:
        """From token ids to token ids, timed by the rival itself around the whole call."""
        new_tokens = len(rows[0].completion_tokens)
        asked = {"tokens": [row.prompt_tokens for row in rows], "new_tokens": new_tokens}
        answer = self._process.ask(asked, CALL_SECONDS)
        try:
            seconds, tokens = float(answer["seconds"]), answer["tokens"]
            return Called(seconds, difference(tokens, rows))
        except (KeyError, TypeError, ValueError) as error:
            raise RivalError(f"answered without seconds or tokens: {str(answer)[:200]}") from error


class ModeCaller:
    """A mode of the running service."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self._client = client

    def call(self, rows: Sequence[ReferenceRow]) -> Called:
        """One request with the prompts as text; `call_seconds` of its timings is the whole call."""
        new_tokens = len(rows[0].completion_tokens)
        answer = self._client.post(
            f"/v1/modes/{self.name}/generate", generate_body([row.prompt for row in rows], new_tokens)
        )
        document = answer.document
        timings = document["timings"]
        texts = [output["text"] for output in document["outputs"]]
        return Called(
            call_seconds(timings), text_difference(texts, rows), steps_seconds(timings), answer.seconds
        )


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
