"""Tokens become text: per row, with stop strings and what may already be streamed."""

from __future__ import annotations

from models.tokenizer import Tokenizer

from service.border.messages import FinishReason, Job, Output


class Row:
    """The completion of one prompt as it grows.

    Text is decoded per token only where somebody needs it then: for stop strings or for a stream. A stop
    string is left out of the text, and so is the end-of-text token.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._job = tokenizer, job
        self._stream = tokenizer.stream() if job.stop or job.stream else None
        self._held = max((len(stop) for stop in job.stop), default=1) - 1
        self._text, self._sent = "", 0
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None

    def push(self, token: int) -> None:
        """Take the next token; sets `finish_reason` once the row is complete."""
        self.token_ids.append(token)
        if token == self._tokenizer.end_of_text and not self._job.ignore_eos:
            self.finish_reason = "stop"
        elif self._stream is not None:
            self._append(self._stream.push(token))
        if self.finish_reason is None and len(self.token_ids) == self._job.max_new_tokens:
            self.finish_reason = "length"
            self._append(self._stream.flush() if self._stream else "")

    def _append(self, text: str) -> None:
        """Add `text` and cut it before the first stop string, if there is one now."""
        self._text += text
        found = [at for stop in self._job.stop if (at := self._text.find(stop)) >= 0]
        if found:
            self._text, self.finish_reason = self._text[: min(found)], "stop"

    def unsent(self) -> str:
        """Text that may leave now: nothing that could still turn out to be part of a stop string."""
        end = len(self._text) if self.finish_reason else max(self._sent, len(self._text) - self._held)
        piece, self._sent = self._text[self._sent : end], end
        return piece

    def output(self) -> Output:
        """What is answered for this row; `length` where the generation ended early."""
        text = self._text
        if self._stream is None:
            text = self._tokenizer.decode(self.token_ids)
        return Output(text=text, token_ids=self.token_ids, finish_reason=self.finish_reason or "length")
