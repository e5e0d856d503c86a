"""Prompts become token ids; token ids become text, row by row, with stop strings and streams."""

from __future__ import annotations

from collections.abc import Sequence

from models.served import ServedTokenizer
from models.tokenizer import TokenizerError
from service.records import FinishReason, Job, Output, Problem


class JobError(Exception):
    """A job that cannot run with its arguments; `problem` is sent to the client."""

    def __init__(self, type_: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(type=type_, message=message, param=param)


UNBOUNDED_TOKEN_BYTES = 64
"""Of a prompt per token of the context, where a tokenizer's tokens have no bound. Prose has four or five."""


def encode_prompts(
    prompts: Sequence[str | list[int]], tokenizer: ServedTokenizer, context: int, new_tokens: int
) -> list[list[int]]:
    """Token ids of each prompt, given as text or as ids; raises JobError for what cannot run.

    Where no text of its size would fit, it is refused unencoded: a megabyte takes long.
    """
    most_bytes = most_prompt_bytes(tokenizer, context)
    for prompt in prompts:
        if isinstance(prompt, list):
            size, most, unit = len(prompt), context, "tokens"
        else:
            size, most, unit = len(prompt.encode(errors="replace")), most_bytes, "bytes"
        if size > most:
            limit = f"over the limit of {most} for a context of {context}: shorten it"
            raise JobError("prompt_too_long", f"a prompt of {size} {unit} is {limit}", "prompts")
    try:
        encoded = [
            tokenizer.encode(prompt) if isinstance(prompt, str) else _checked(prompt, tokenizer.vocabulary)
            for prompt in prompts
        ]
    except TokenizerError as error:
        raise JobError("invalid_request", str(error), "prompts") from error
    if not all(encoded):
        raise JobError("invalid_request", "a prompt has no tokens: write at least a word", "prompts")
    longest = max(map(len, encoded))
    if longest + new_tokens > context:
        raise JobError(
            "prompt_too_long",
            f"the longest prompt has {longest} tokens; with {new_tokens} new ones that is over"
            f" the context of {context}: shorten the prompt or ask for fewer tokens",
            "prompts",
        )
    return encoded


def most_prompt_bytes(tokenizer: ServedTokenizer, context: int) -> int:
    """The UTF-8 of a prompt that is encoded, at most: `context` of the tokenizer's longest tokens."""
    return context * (tokenizer.longest_token_bytes or UNBOUNDED_TOKEN_BYTES)


def _checked(prompt: list[int], vocabulary: int) -> list[int]:
    """`prompt`; raises JobError for a token id outside [0, vocabulary)."""
    for token in prompt:
        if not 0 <= token < vocabulary:
            message = f"there is no token {token}: ids go from 0 to {vocabulary - 1}"
            raise JobError("invalid_request", message, "prompts")
    return prompt


class Completion:
    """The completion of one prompt as it grows.

    Text is decoded per token only for stop strings and streams. A stop string is left out of the text with
    all that follows it.
    """

    def __init__(self, job: Job, tokenizer: ServedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._job = job
        self._decoder = tokenizer.stream() if job.stop or job.stream else None
        self._held_characters = max((len(stop) for stop in job.stop), default=1) - 1
        self._text = ""
        self._sent = 0
        self._ended = False
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None

    def examine(self) -> None:
        """Examine the newest token; sets `finish_reason` once the row is complete."""
        token = self.token_ids[-1]
        if token in self._tokenizer.ends and not self._job.ignore_eos:
            self.finish_reason = "stop"
        elif self._decoder is not None:
            self._append(self._decoder.push(token))
        if self.finish_reason is None and len(self.token_ids) == self._job.max_new_tokens:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            self.end()

    def end(self) -> bool:
        """No token follows: complete the text, once. Returns whether that was left to do."""
        if self._ended:
            return False
        self._ended = True
        if self._decoder is not None:
            self._append(self._decoder.flush())
        return True

    def _append(self, text: str) -> None:
        """Add `text`, then cut before the first stop string if there is one now, which ends the row."""
        self._text += text
        found = [place for stop in self._job.stop if (place := self._text.find(stop)) >= 0]
        if found:
            self._text = self._text[: min(found)]
            self.finish_reason = "stop"
            self._ended = True

    def unsent(self) -> str:
        """Text that may leave now: nothing that could still turn out to be part of a stop string."""
        end = len(self._text)
        if not self._ended:
            end = max(self._sent, end - self._held_characters)
        piece = self._text[self._sent : end]
        self._sent = end
        return piece

    def output(self) -> Output:
        """What is answered for this row; `length` where the generation ended early."""
        text = self._text
        if self._decoder is None:
            # All tokens at once; there are no stop strings, so what stopped is an end-of-text token.
            stopped = self.finish_reason == "stop"
            text = self._tokenizer.decode(self.token_ids[:-1] if stopped else self.token_ids)
        return Output(text=text, token_ids=self.token_ids, finish_reason=self.finish_reason or "length")


class Completions:
    """All rows of a job. Most steps complete nothing, and then their tokens are only kept until one does."""

    def __init__(self, job: Job, tokenizer: ServedTokenizer) -> None:
        self._rows = [Completion(job, tokenizer) for _ in job.prompts]
        self._kept: list[list[int]] = []
        self._steps_left = job.max_new_tokens
        self._every_token = bool(job.stop) or job.stream
        self._ends: frozenset[int] = frozenset() if job.ignore_eos else tokenizer.ends

    def take_in(self, tokens: list[int]) -> list[tuple[int, Completion]]:
        """Take for every unfinished row its token of `tokens` [bucket]; returns the rows examined."""
        self._kept.append(tokens)
        self._steps_left -= 1
        if self._steps_left and not self._every_token and self._ends.isdisjoint(tokens):
            return []
        self._append_kept()
        examined = [(index, row) for index, row in enumerate(self._rows) if row.finish_reason is None]
        for _, row in examined:
            row.examine()
        return examined

    def end(self) -> list[tuple[int, Completion]]:
        """No tokens follow: complete the text of the rows that were interrupted; returns those rows."""
        self._append_kept()
        return [(index, row) for index, row in enumerate(self._rows) if row.end()]

    def _append_kept(self) -> None:
        kept, self._kept = self._kept, []
        for index, row in enumerate(self._rows):
            if row.finish_reason is None:
                row.token_ids += [tokens[index] for tokens in kept]

    @property
    def complete(self) -> bool:
        return all(row.finish_reason is not None for row in self._rows)

    def outputs(self) -> list[Output]:
        return [row.output() for row in self._rows]
