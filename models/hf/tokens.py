"""A Hugging Face model's tokenizer: the ids of `AutoTokenizer`, through the `tokenizers` library alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import tokenizers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from models.hf.loading import load_config, silence_transformers
from models.tokenizer import TOKENIZER_FILE, TokenizerError, refuse_surrogates

REPLACEMENT = "\ufffd"
"""What decoders make of bytes that are not UTF-8."""


class HuggingFaceTokenizer:
    """Encodes as the model's `AutoTokenizer` does, special tokens before and after included.

    Special tokens in a prompt are encoded as such, for chat templates. `ends` are those that stop `generate`.
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, ends: frozenset[int], vocabulary: int | None = None
    ) -> None:
        """`vocabulary`: logits of the model; a token beyond them is in no prompt. None: as many as tokens."""
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._appends = _appends(inner)
        self.ends = ends
        self.longest_token_bytes: int | None = None  # a normaliser may shorten a text of any length
        tokens = max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.vocabulary: int = tokens if vocabulary is None else min(tokens, vocabulary)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Raises TokenizerError for lone surrogates, which have no encoding, and for a
        token that the model has no embedding of.
        """
        refuse_surrogates(text)
        ids: list[int] = self._inner.encode(text).ids
        if max(ids, default=0) >= self.vocabulary:
            raise TokenizerError(
                f"a prompt holds {self._inner.id_to_token(max(ids))}, a token that the model does not have: "
                "remove it"
            )
        return ids

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens`; special tokens and unknown ids are left out."""
        ids = list(tokens)
        text: str = self._inner.decode(ids, skip_special_tokens=True)
        if self._appends and REPLACEMENT not in text:
            return text
        stream = self.stream()
        return "".join([*map(stream.push, ids), stream.flush()])

    def stream(self) -> HuggingFaceStream:
        return HuggingFaceStream(self._inner)


def _appends(inner: tokenizers.Tokenizer) -> bool:
    """Whether another token leaves the text of those before it as it is, where that has no U+FFFD."""
    if inner.decoder is None:
        return True
    decoder = msgspec.json.decode(inner.decoder.__getstate__())
    kinds = [part["type"] for part in decoder.get("decoders", [decoder])]
    return "Fuse" not in kinds or "Replace" not in kinds[kinds.index("Fuse") :]


class HuggingFaceStream:
    """Incremental decoding: the concatenated results of `push` and `flush` are what `decode` returns.

    A decoder may take back what it said: of bytes that stand for characters, one that is no UTF-8 makes
    U+FFFD of all the bytes before it. What was returned stays, and that byte alone becomes U+FFFD.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        self._tokens: list[int] = []
        self._shown = ""
        self._fresh = 0

    def push(self, token: int) -> str:
        self._tokens.append(token)
        text = self._text()
        if not text.startswith(self._shown):
            self._tokens, self._fresh, self._shown = [token], 0, ""
            text = self._text()
        if text.endswith(REPLACEMENT) or len(text) == len(self._shown):
            return ""
        piece = text[len(self._shown) :]
        # What follows is decoded behind the tokens of this piece: a decoder treats the first token apart.
        del self._tokens[: self._fresh]
        self._fresh, self._shown = len(self._tokens), self._text()
        return piece

    def flush(self) -> str:
        return self._text()[len(self._shown) :]

    def _text(self) -> str:
        text: str = self._inner.decode(self._tokens, skip_special_tokens=True)
        return text


def load(folder: Path, vocabulary: int) -> HuggingFaceTokenizer:
    """The tokenizer in `folder`, for a model with `vocabulary` logits.

    Raises TokenizerError, with the remedy, where there is none, it is broken, or has more tokens than that.
    """
    silence_transformers()
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        raise TokenizerError(
            f"no {file}: write it there with `AutoTokenizer.from_pretrained(…).save_pretrained(…)`"
        )
    try:
        whole = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"{file} is not a tokenizer ({error}): fetch it again") from error
    if not isinstance(whole, PreTrainedTokenizerFast):
        raise TokenizerError(f"{file} is not the model's tokenizer ({type(whole).__name__}): fetch it again")
    inner: tokenizers.Tokenizer = whole.backend_tokenizer
    learnt = max(inner.get_vocab(with_added_tokens=False).values(), default=-1) + 1
    tokenizer = HuggingFaceTokenizer(inner, end_tokens(folder), vocabulary)
    begun = inner.encode("").ids
    if max(learnt - 1, *begun, 0) >= vocabulary:
        tokens = max(inner.get_vocab(with_added_tokens=True).values()) + 1
        raise TokenizerError(
            f"{file} has {tokens} tokens but the model only {vocabulary}: "
            "use the tokenizer that the model was trained with"
        )
    return tokenizer


def end_tokens(folder: Path) -> frozenset[int]:
    """The tokens at which `generate` stops: those of generation_config.json, else of config.json."""
    try:
        config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except OSError:
        config = GenerationConfig.from_model_config(load_config(folder))
    ends = config.eos_token_id
    if ends is None:
        return frozenset()
    found = ends if isinstance(ends, list) else [ends]
    if not all(isinstance(end, int) for end in found):
        raise TokenizerError(
            f"eos_token_id of {folder} is {ends!r}, which is no token id: write the number of that token"
        )
    return frozenset(found)
