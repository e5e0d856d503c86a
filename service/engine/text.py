"""Tokens become text: row by row, with stop strings and what may already be streamed."""

from __future__ import annotations

from collections.abc import Callable

from models.served import ServedTokenizer
from service.protocol.messages import FinishReason, Job, Output


class Completion:
    """The completion of one prompt as it grows.

    Text is decoded per token only where somebody needs it then: for stop strings or for a stream. A stop
    string is left out of the text, and so is the end-of-text token. One that was complete within the job's
    `min_tokens` is text like any other.
    """

    def __init__(self, job: Job, tokenizer: ServedTokenizer) -> None:
        self._tokenizer, self._job = tokenizer, job
        self._stream = tokenizer.stream() if job.stop or job.stream else None
        self._held = max((len(stop) for stop in job.stop), default=1) - 1
        self._text, self._sent, self._settled = "", 0, 0
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None

    def examine(self) -> None:
        """Look at the newest token; sets `finish_reason` once the row is complete."""
        token = self.token_ids[-1]
        if token in self._tokenizer.ends and not self._job.ignore_eos:
            self.finish_reason = "stop"
        elif self._stream is not None:
            self._append(self._stream.push(token))
        if self.finish_reason is None and len(self.token_ids) == self._job.max_new_tokens:
            self.finish_reason = "length"
            self._append(self._stream.flush() if self._stream else "")

    def _append(self, text: str) -> None:
        """Add `text`, then cut before the first stop string if there is one now."""
        self._text += text
        if len(self.token_ids) <= self._job.min_tokens:
            self._settled = len(self._text)
        found = [at for stop in self._job.stop if (at := self._find(stop)) >= 0]
        if found:
            self._text, self.finish_reason = self._text[: min(found)], "stop"

    def _find(self, stop: str) -> int:
        """Where `stop` first stands with its end beyond the text of the first `min_tokens` tokens, or -1."""
        return self._text.find(stop, max(0, self._settled - len(stop) + 1))

    def unsent(self) -> str:
        """Text that may leave now: nothing that could still turn out to be part of a stop string."""
        end = len(self._text) if self.finish_reason else max(self._sent, len(self._text) - self._held)
        piece, self._sent = self._text[self._sent : end], end
        return piece

    def output(self) -> Output:
        """What is answered for this row; `length` where the generation ended early."""
        text = self._text if self._stream is not None else self._tokenizer.decode(self.token_ids)
        return Output(text=text, token_ids=self.token_ids, finish_reason=self.finish_reason or "length")


class Completions:
    """All rows of a job. Most steps complete nothing, and then taking in their tokens is cheap."""

    def __init__(self, job: Job, tokenizer: ServedTokenizer) -> None:
        self._rows = [Completion(job, tokenizer) for _ in job.prompts]
        self._appends: list[Callable[[int], object]] = [row.token_ids.append for row in self._rows]
        self._steps_left = job.max_new_tokens
        self._every_token = bool(job.stop) or job.stream
        self._ends: frozenset[int] = frozenset() if job.ignore_eos else tokenizer.ends

    def take_in(self, tokens: list[int]) -> list[tuple[int, Completion]]:
        """Give every unfinished row its token of `tokens` [bucket]; returns the rows to look at, if any."""
        for append, token in zip(self._appends, tokens, strict=False):
            append(token)
        self._steps_left -= 1
        if self._steps_left and not self._every_token and self._ends.isdisjoint(tokens):
            return []
        examined = [(index, row) for index, row in enumerate(self._rows) if row.finish_reason is None]
        for index, row in examined:
            row.examine()
            if row.finish_reason is not None:
                self._appends[index] = _ignore
        return examined

    @property
    def complete(self) -> bool:
        """Whether no row wants another token."""
        return all(row.finish_reason is not None for row in self._rows)

    def outputs(self) -> list[Output]:
        """What is answered, in the order of the prompts."""
        return [row.output() for row in self._rows]


def _ignore(token: int) -> None:
    """Where a finished row's further tokens go."""
