"""A Hugging Face model's tokenizer: the ids of `AutoTokenizer`, through the `tokenizers` library alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers.pre_tokenizers import ByteLevel
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
        self._grows = _grows(inner)
        self.ends = ends
        self.longest_token_bytes = longest_token_bytes(inner)
        tokens = max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.vocabulary: int = tokens if vocabulary is None else min(tokens, vocabulary)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`.

        Raises TokenizerError for lone surrogates, which have no encoding, and for a token that the model has
        no embedding of.
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
        if self._grows and REPLACEMENT not in text:
            return text
        stream = self.stream()
        return "".join([*map(stream.push, ids), stream.flush()])

    def stream(self) -> HuggingFaceStream:
        """An incremental decoder."""
        return HuggingFaceStream(self._inner)


def _grows(inner: tokenizers.Tokenizer) -> bool:
    """Whether another token leaves the text of those before it as it is, where that has no U+FFFD."""
    if inner.decoder is None:
        return True
    told = msgspec.json.decode(inner.decoder.__getstate__())
    kinds = [part["type"] for part in told.get("decoders", [told])]
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
        """The text that `token` completes: whole characters, often none while one spans several tokens."""
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
        """The text of an incomplete last character, if any. Call it at the end."""
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
