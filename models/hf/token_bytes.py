"""How much of a prompt one token of a Hugging Face tokenizer can stand for, where that has a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import tokenizers
from tokenizers.pre_tokenizers import ByteLevel

SHRINKS = {"NFC": 3, "NFD": 3, "NFKC": 4, "NFKD": 4, "Lowercase": 3, "Prepend": 1, "ByteLevel": 1}
"""How many times shorter a normaliser can make the UTF-8 of a text.

By Unicode's tables: three Hangul letters of 3 bytes compose to one of 3; U+1FEF decomposes from 3 bytes to
1, U+1D400 compatibly from 4 to 1; U+212A has a lower case of 1. What is not here may remove text of any
length, as StripAccents and BertNormalizer do, or is not known.
"""

KEEPERS = frozenset(
    {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength", "Split", "Punctuation"}
)
"""Pre-tokenizers that cut a text and remove nothing of it, the last two unless told to."""

Told = Mapping[str, Any]
"""A part of a tokenizer as `tokenizer.json` has it."""


def longest_token_bytes(inner: tokenizers.Tokenizer) -> int | None:
    """As `ServedTokenizer`. None where text of any length may vanish before it is cut into tokens, or where
    one token stands for any run of what is unknown or blank.
    """
    told = msgspec.json.decode(inner.to_str())
    absorbs = any(token["lstrip"] or token["rstrip"] for token in told["added_tokens"])
    shrink = _shrink(told["normalizer"])
    if absorbs or shrink is None or not _keeps(told["pre_tokenizer"]) or not _has_token_for_all(told):
        return None
    return shrink * max(4, *(len(token.encode()) for token in inner.get_vocab(with_added_tokens=True)))


def _shrink(normalizer: Told | None) -> int | None:
    """How many times shorter it can make a text; None without a bound."""
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        parts = [_shrink(part) for part in normalizer["normalizers"]]
        return None if None in parts else math.prod(part for part in parts if part)
    if kind == "Replace":
        found, put = normalizer["pattern"].get("String"), normalizer["content"]
        return math.ceil(max(1.0, len(found.encode()) / len(put.encode()))) if found and put else None
    return SHRINKS.get(kind)


def _keeps(pre_tokenizer: Told | None) -> bool:
    """Whether all of a text is still there when it is cut."""
    if pre_tokenizer is None:
        return True
    kind = pre_tokenizer["type"]
    if kind == "Sequence":
        return all(map(_keeps, pre_tokenizer["pretokenizers"]))
    return kind in KEEPERS and pre_tokenizer.get("behavior") != "Removed"


def _has_token_for_all(told: Told) -> bool:
    """Whether each character has tokens of its own, an unknown one too: else a run may be one, or none."""
    model = told["model"]
    if model["type"] != "BPE":
        return False
    vocabulary = model["vocab"]
    if _byte_level(told["pre_tokenizer"]) or _byte_level(told["normalizer"]):
        return all(letter in vocabulary for letter in ByteLevel.alphabet())
    if model.get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    return model["unk_token"] is not None and not model["fuse_unk"]


def _byte_level(part: Told | None) -> bool:
    """Whether a text's bytes become letters there."""
    if part is None:
        return False
    inside = part.get("pretokenizers") or part.get("normalizers") or ()
    return part["type"] == "ByteLevel" or any(map(_byte_level, inside))
