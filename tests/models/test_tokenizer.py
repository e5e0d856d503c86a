"""Any text makes ids, any ids make text, and a stream of tokens never shows half a character."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from models.checkpoint import TINY_FOLDER
from models.config import CONFIGS
from models.opening import open_tokenizer
from models.tokenizer import END_OF_TEXT, Tokenizer, TokenizerError

TOKENIZER = Tokenizer.load(TINY_FOLDER)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT)
def test_decoding_returns_the_encoded_text(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(st.integers(0, TOKENIZER.vocabulary - 1)))
def test_streamed_pieces_join_to_the_decoded_whole_for_any_tokens(tokens: list[int]) -> None:
    stream = TOKENIZER.stream()
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.flush() == TOKENIZER.decode(tokens)


@given(TEXT)
def test_a_stream_of_real_text_never_emits_a_broken_character(text: str) -> None:
    stream = TOKENIZER.stream()
    pieces = [stream.push(token) for token in TOKENIZER.encode(text.replace("\ufffd", ""))]
    assert "\ufffd" not in "".join(pieces)
    assert stream.flush() == ""


def test_a_character_that_stays_incomplete_is_shown_at_the_flush() -> None:
    stream = TOKENIZER.stream()
    assert stream.push(TOKENIZER.encode("😀")[0]) == ""
    assert stream.flush() == "\ufffd"


def test_the_end_of_text_spelt_out_in_a_prompt_is_text_and_its_token_is_none() -> None:
    tokens = TOKENIZER.encode(END_OF_TEXT)
    assert TOKENIZER.end_of_text not in tokens
    assert TOKENIZER.decode([*tokens, TOKENIZER.end_of_text, *tokens]) == 2 * END_OF_TEXT


@pytest.mark.parametrize("token", [-1, 4096])
def test_an_id_out_of_range_is_refused(token: int) -> None:
    with pytest.raises(TokenizerError, match="0 to 4095"):
        TOKENIZER.decode([token])


def test_a_seeded_size_has_text_for_every_logit_and_that_of_tiny_for_its_tokens() -> None:
    tokenizer = open_tokenizer("small", CONFIGS["small"].vocabulary)
    assert tokenizer.vocabulary == CONFIGS["small"].vocabulary > TOKENIZER.vocabulary
    tokens = TOKENIZER.encode("def mean(values):")
    assert tokenizer.encode("def mean(values):") == tokens
    beyond = [*tokens, TOKENIZER.vocabulary, tokenizer.vocabulary - 1]
    assert tokenizer.decode(beyond) == "def mean(values):\ufffd\ufffd"
    stream = tokenizer.stream()
    assert "".join(map(stream.push, beyond)) + stream.flush() == tokenizer.decode(beyond)
    assert tokenizer.longest_token_bytes == TOKENIZER.longest_token_bytes
    with pytest.raises(TokenizerError):
        tokenizer.decode([tokenizer.vocabulary])


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(TokenizerError, match="character 2"):
        TOKENIZER.encode("ab\ud800")


def test_a_tokenizer_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"4096 tokens but the model 64.*trained with"):
        Tokenizer.load(TINY_FOLDER, vocabulary=64)


WORDS = tokenizers.models.WordLevel({END_OF_TEXT: 0, "naïve ": 1}, unk_token=END_OF_TEXT)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"tokenizer\.json.*copy"),
        ('{"version": "1.0", "model"', r"not a tokenizer.*again"),
        (tokenizers.Tokenizer(WORDS).to_str(), "not a byte-level"),
    ],
    ids=["missing", "broken", "of words"],
)
def test_a_file_that_is_missing_broken_or_not_byte_level_is_refused(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(tmp_path)
