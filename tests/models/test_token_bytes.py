"""No text has fewer tokens than its bytes say, whatever a tokenizer does to it; else there is no bound."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any

import pytest

pytest.importorskip("transformers")

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from models.hf.tokens import SHRINKS, longest_token_bytes

BYTES = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
MERGED = {**BYTES, "ab": 256, "abab": 257}
FALLBACK = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "a": 257, "▁a": 258}

NORMALIZERS = {
    "none": None,
    "NFC": normalizers.NFC(),
    "NFD": normalizers.NFD(),
    "NFKC": normalizers.NFKC(),
    "NFKD": normalizers.NFKD(),
    "Lowercase": normalizers.Lowercase(),
    "several": normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    "shorter": normalizers.Replace("abcdef", "xy"),
}
TEXT = st.text(st.characters(codec="utf-8")) | st.text(
    "abcdefABC \u212a\u1fef\u1100\u1161\u11a8\U0001d400e\u0301\u212b"
)
"""Any, and much of what normalisers make shorter."""


def byte_level(normalizer: Any = None, **changes: Any) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(MERGED, [("a", "b"), ("ab", "ab")], **changes))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        made.normalizer = normalizer
    return made


def with_fallback() -> tokenizers.Tokenizer:
    """As Llama 2 and Gemma have it: blanks become a letter, and what has no token becomes bytes."""
    made = tokenizers.Tokenizer(
        models.BPE(FALLBACK, [("▁", "a")], unk_token="▁", fuse_unk=True, byte_fallback=True)
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return made


@pytest.mark.parametrize("name", NORMALIZERS)
@given(text=TEXT)
def test_no_text_has_fewer_tokens_than_its_bytes_say(name: str, text: str) -> None:
    made = byte_level(NORMALIZERS[name])
    longest = longest_token_bytes(made)
    assert longest is not None
    assert len(made.encode(text).ids) * longest >= len(text.encode())


@given(text=TEXT)
def test_nor_where_unknown_characters_become_bytes(text: str) -> None:
    made = with_fallback()
    longest = longest_token_bytes(made)
    assert longest is not None
    assert len(made.encode(text).ids) * longest >= len(text.encode())


@pytest.mark.parametrize("name", sorted(SHRINKS.keys() - {"Prepend", "ByteLevel"}))
def test_no_character_is_shortened_by_more_than_is_said(name: str) -> None:
    normalizer = getattr(normalizers, name)()
    worst = max(
        len(character.encode()) / len(normalizer.normalize_str(character).encode())
        for character in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(character) not in ("Cn", "Co", "Cs")
    )
    assert 1 < worst <= SHRINKS[name]


def test_a_normaliser_that_makes_text_shorter_makes_the_bound_longer() -> None:
    plain, shorter = (longest_token_bytes(byte_level(NORMALIZERS[name])) for name in ("none", "NFC"))
    assert shorter == SHRINKS["NFC"] * plain


def without(made: tokenizers.Tokenizer, **parts: Any) -> tokenizers.Tokenizer:
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def absorbing() -> tokenizers.Tokenizer:
    made = byte_level()
    made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    return made


@pytest.mark.parametrize(
    "made",
    [
        byte_level(normalizers.StripAccents()),
        byte_level(normalizers.Strip()),
        byte_level(normalizers.BertNormalizer()),
        byte_level(normalizers.Replace("a", "")),
        byte_level(normalizers.Replace(tokenizers.Regex(" {2,}"), " ")),
        byte_level(normalizers.Sequence([normalizers.NFC(), normalizers.StripAccents()])),
        without(byte_level(), pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
        without(byte_level(), pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
        without(byte_level(), pre_tokenizer=None),
        tokenizers.Tokenizer(models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=True)),
        tokenizers.Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]")),
        tokenizers.Tokenizer(models.Unigram([("a", 0.0), ("?", 0.0)], 1)),
        absorbing(),
    ],
)
def test_there_is_no_bound_where_a_long_text_may_become_few_tokens(made: tokenizers.Tokenizer) -> None:
    assert longest_token_bytes(made) is None


def test_each_unknown_character_may_be_a_token_of_its_own() -> None:
    made = tokenizers.Tokenizer(models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=False))
    assert longest_token_bytes(made) == 4
    assert len(made.encode("🙂" * 10).ids) == 10
