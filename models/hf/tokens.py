"""A Hugging Face model's tokenizer: the ids of `AutoTokenizer`, through the `tokenizers` library alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from models.hf.loading import load_config, silence_transformers
from models.hf.token_bytes import longest_token_bytes
from models.tokenizer import TOKENIZER_FILE, TokenizerError, refuse_surrogates


class HuggingFaceTokenizer:
    """Encodes as the model's `AutoTokenizer` does, special tokens before and after included.

    Special tokens in a prompt are encoded as such, for chat templates. `ends` are those that stop `generate`.
    """

    def __init__(self, inner: tokenizers.Tokenizer, ends: frozenset[int]) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self.ends = ends
        self.longest_token_bytes = longest_token_bytes(inner)
        self.vocabulary: int = max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Raises TokenizerError for lone surrogates, which have no encoding."""
        refuse_surrogates(text)
        ids: list[int] = self._inner.encode(text).ids
        return ids

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens`; special tokens and unknown ids are left out."""
        text: str = self._inner.decode(list(tokens), skip_special_tokens=True)
        return text

    def stream(self) -> HuggingFaceStream:
        """An incremental decoder."""
        return HuggingFaceStream(self._inner)


class HuggingFaceStream:
    """Incremental decoding: the concatenated results of `push` and `flush` equal `decode` of all tokens."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens: list[int] = []
        self._text = ""

    def push(self, token: int) -> str:
        """The text that `token` completes: whole characters, often none while one spans several tokens."""
        self._tokens.append(token)
        piece = self._stream.step(self._inner, token) or ""
        self._text += piece
        return piece

    def flush(self) -> str:
        """The text of an incomplete last character, if any. Call it at the end."""
        whole = self._inner.decode(self._tokens, skip_special_tokens=True)
        return whole[len(self._text) :] if whole.startswith(self._text) else ""


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
    tokenizer = HuggingFaceTokenizer(whole.backend_tokenizer, end_tokens(folder))
    if tokenizer.vocabulary > vocabulary:
        raise TokenizerError(
            f"{file} has {tokenizer.vocabulary} tokens but the model only {vocabulary}: "
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
    return frozenset(ends if isinstance(ends, list) else [ends])
