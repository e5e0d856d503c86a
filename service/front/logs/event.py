"""What is logged as fields rather than as a sentence, and text that cannot break a line."""

from __future__ import annotations

import re

import msgspec

MOST_CHARACTERS = 4000
"""Of one text in a line."""

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, among them all that end a line or begin a terminal's commands; characters that turn the
direction of what follows; halves of characters, which have no UTF-8.
"""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A message of `logging` with fields: in JSON these are the line's own, for people it is its `str`."""


def one_line(text: str, most: int = MOST_CHARACTERS, keep: str = "") -> str:
    """`text` cut to `most` characters, with an escape for each that could break or forge a line.

    The characters in `keep` stay.
    """
    shown = text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), shown)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
