"""How many prompts and tokens a body may have, told by its punctuation before they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from service.front.api.body_refusals import too_long, too_many
from service.front.api.state import AppState


@dataclass(frozen=True, slots=True)
class Limits:
    """`prompts` of a batch, and tokens of one prompt: the `context`, None where no engine has said it.

    `raw` is the JSON of a list. Its punctuation is counted far faster than values are made of it, and
    gives the least that it holds: what is over a limit by that is over it.
    """

    prompts: int
    context: int | None

    @classmethod
    def of(cls, state: AppState) -> Self:
        """Those of this instance now."""
        engine = state.client.engine
        return cls(state.settings.batch_sizes[-1], engine.context if engine is not None else None)

    def check_texts(self, name: str, raw: bytes) -> None:
        """Raise BadRequest where there are more texts than prompts may be.

        Every text has two quotes that are not escaped. An escaped one follows a backslash, as may the last
        one of a text that ends with a backslash.
        """
        least = (raw.count(b'"') - raw.count(b'\\"')) // 2
        if least > self.prompts:
            raise too_many(name, f"at least {least}", self.prompts)

    def check_lists(self, name: str, raw: bytes) -> None:
        """Raise BadRequest where there are more lists than prompts may be: each is slow to make."""
        if (lists := raw.count(b"[") - 1) > self.prompts:
            raise too_many(name, str(lists), self.prompts)

    def check_numbers(self, name: str, raw: bytes, lists: int) -> None:
        """Raise BadRequest where there are more token ids than so many `lists` of them may have.

        A comma stands between any two ids, or lists; an empty list has one comma more than ids.
        """
        least = raw.count(b",") + 1 - lists
        if self.context is not None and least > self.context * lists:
            raise too_long(name, f"at least {least}", self.context)
