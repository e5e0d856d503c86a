"""Whatever a model generates is text, of any kind of tokenizer: streamed or not, it is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from models.hf.tokens import HuggingFaceTokenizer, end_tokens
from models.tokenizer import TokenizerError
from service.engine.inbox import local_job
from service.engine.text import Completions

PIECES = [
    "<unk>", "a", "b", "ab", " ", "▁", "▁a", "▁▁", "##a", ".", "'", "n't", "'m", " do not", "a</w>", "é", "�",
]  # fmt: skip
FALLBACK = {piece: number for number, piece in enumerate(PIECES)}
FIRST_BYTE = len(FALLBACK)
FALLBACK |= {f"<0x{byte:02X}>": FIRST_BYTE + byte for byte in range(256)}
LETTERS = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}

DECODERS: dict[str, Any] = {
    "none": None,
    "SentencePiece": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "SentencePiece that keeps its first blank": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    ),
    "Metaspace": decoders.Metaspace(),
    "WordPiece with clean-up": decoders.WordPiece(cleanup=True),
    "WordPiece": decoders.WordPiece(cleanup=False),
    "suffixes": decoders.BPEDecoder(),
    "rewriting": decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
}


def byte_level() -> HuggingFaceTokenizer:
    inner = tokenizers.Tokenizer(models.BPE(LETTERS, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["</s>"])
    return HuggingFaceTokenizer(inner, frozenset())


def fallback(decoder: Any) -> HuggingFaceTokenizer:
    inner = tokenizers.Tokenizer(models.BPE(FALLBACK, [], unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if decoder is not None:
        inner.decoder = decoder
    inner.add_special_tokens(["</s>"])
    return HuggingFaceTokenizer(inner, frozenset())


TOKENIZERS = {"byte-level": byte_level()} | {name: fallback(made) for name, made in DECODERS.items()}
BYTES_OF_CHARACTERS = [FIRST_BYTE + byte for byte in "你é ▁".encode()]
IDS = st.lists(
    st.integers(0, FIRST_BYTE - 1) | st.sampled_from(BYTES_OF_CHARACTERS) | st.integers(0, len(FALLBACK) + 9)
)
"""Much of what nearly makes characters, and ids that have no token."""


def streamed(tokenizer: HuggingFaceTokenizer, ids: list[int]) -> str:
    stream = tokenizer.stream()
    return "".join([*map(stream.push, ids), stream.flush()])


@pytest.mark.parametrize("name", TOKENIZERS)
@given(ids=IDS)
@example(ids=[FIRST_BYTE + byte for byte in b"\xe4\xbd\xa0\xff"])
@example(ids=[FIRST_BYTE + byte for byte in b"\xe4\xbd"])
@example(ids=[1, 2])
def test_a_stream_of_any_tokens_is_their_text(name: str, ids: list[int]) -> None:
    tokenizer = TOKENIZERS[name]
    assert streamed(tokenizer, ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(ids=IDS)
def test_a_row_of_any_tokens_ends_with_the_same_text_streamed_or_with_stop_strings(
    name: str, ids: list[int]
) -> None:
    texts = []
    for options in ({}, {"stream": True}, {"stop": ["zzzzz"]}):
        rows = Completions(local_job("a", "eager", ["x"], len(ids) + 1, **options), TOKENIZERS[name])
        sent = "".join(row.unsent() for token in ids for _, row in rows.take_in([token]))
        sent += "".join(row.unsent() for _, row in rows.end())
        texts.append(rows.outputs()[0].text)
        assert sent == texts[-1] or not options
    assert len(set(texts)) == 1


@pytest.mark.parametrize("name", TOKENIZERS)
@given(ids=IDS)
def test_text_without_a_broken_character_is_the_librarys(name: str, ids: list[int]) -> None:
    tokenizer = TOKENIZERS[name]
    text = tokenizer._inner.decode(ids)
    if "\ufffd" not in text and name != "rewriting":
        assert tokenizer.decode(ids) == text


def test_a_byte_that_is_no_text_takes_back_nothing_of_what_was_streamed() -> None:
    tokenizer = TOKENIZERS["SentencePiece"]
    stream = tokenizer.stream()
    ids = [FIRST_BYTE + byte for byte in b"\xe4\xbd\xa0\xff"]
    assert [stream.push(token) for token in [*ids, 1]] == ["", "", "你", "", "\ufffda"]


@pytest.mark.parametrize("name", ["byte-level", "SentencePiece"])
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁\ufffd")))
def test_a_prompt_streams_back_as_the_library_decodes_it(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    assert streamed(tokenizer, ids) == tokenizer._inner.decode(ids)


def test_an_end_token_that_is_no_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": "</s>"}))
    with pytest.raises(TokenizerError, match=r"eos_token_id .* is '</s>', .*write the number"):
        end_tokens(tmp_path)
