"""Byte-level BPE tokenizer: any text can be encoded, any token ids can be decoded."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

TOKENIZER_FILE = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
REPLACEMENT = "\ufffd".encode()


class TokenizerError(ValueError):
    """A tokenizer that cannot be loaded or does not fit its model, or text it cannot take."""


def refuse_surrogates(text: str) -> None:
    """Raise TokenizerError where `text` cannot be encoded at all."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"a prompt holds a lone surrogate at character {error.start}: remove it"
        ) from error


def _byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for, as GPT-2 assigned them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + index): b for index, b in enumerate(others)}


class Tokenizer:
    """Encodes and decodes; made by `load` or `train`."""

    def __init__(self, inner: tokenizers.Tokenizer, source: str) -> None:
        """Wrap `inner`; `source` names it in errors.

        Raises TokenizerError where it is not byte-level or has no end-of-text token.
        """
        end = inner.token_to_id(END_OF_TEXT)
        if end is None:
            raise TokenizerError(
                f"{source} has no {END_OF_TEXT} token: train it with `python -m models.training.train`"
            )
        # The literal end-of-text string in a prompt is encoded as text, not as the special token.
        inner.encode_special_tokens = True
        self._inner = inner
        self.end_of_text: int = end
        self.ends = frozenset([end])
        alphabet = _byte_of_character()
        self._bytes = [b""] * inner.get_vocab_size()
        try:
            for token, number in inner.get_vocab().items():
                if number != end:
                    self._bytes[number] = bytes(alphabet[character] for character in token)
        except (KeyError, IndexError) as error:
            raise TokenizerError(f"{source} is not a byte-level BPE: serve its model as hf:FOLDER") from error
        self.longest_token_bytes: int | None = max(map(len, self._bytes))

    @classmethod
    def load(cls, folder: Path | str, vocabulary: int | None = None) -> Tokenizer:
        """Read `tokenizer.json` of `folder`. `vocabulary` is that of the model it must fit. Raises
        TokenizerError where the file is missing or broken, or has another number of tokens.
        """
        file = Path(folder) / TOKENIZER_FILE
        if not file.is_file():
            raise TokenizerError(
                f"no {file}: copy the {TOKENIZER_FILE} that the model was trained with there"
            )
        try:
            inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise TokenizerError(f"{file} is not a tokenizer ({error}): fetch or write it again") from error
        tokenizer = cls(inner, str(file))
        if vocabulary is not None and tokenizer.vocabulary != vocabulary:
            raise TokenizerError(
                f"{file} has {tokenizer.vocabulary} tokens but the model {vocabulary}: "
                "use the tokenizer that the model was trained with"
            )
        return tokenizer

    def widened(self, vocabulary: int) -> Tokenizer:
        """This tokenizer for a model of `vocabulary` logits, at least its own: tokens beyond those it has are
        in no text, and are decoded to U+FFFD.
        """
        wide = Tokenizer(self._inner, "the widened tokenizer")
        wide._bytes += [REPLACEMENT] * (vocabulary - self.vocabulary)
        return wide

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int) -> Tokenizer:
        """Learn a byte-level BPE of `vocabulary` tokens from `texts`; deterministic."""
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[END_OF_TEXT],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        inner.train_from_iterator(texts, trainer)
        return cls(inner, "the trained tokenizer")

    def save(self, folder: Path | str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._inner.save(str(Path(folder) / TOKENIZER_FILE))

    @property
    def vocabulary(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; nothing is added.

        Raises TokenizerError for lone surrogates, which have no encoding.
        """
        refuse_surrogates(text)
        ids: list[int] = self._inner.encode(text).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each of `texts`, all of them text; parallel where the library is."""
        return [encoding.ids for encoding in self._inner.encode_batch_fast(list(texts))]

    def bytes_of(self, token: int) -> bytes:
        """The bytes of `token`; none for end of text. Raises TokenizerError for an id out of range."""
        if not 0 <= token < len(self._bytes):
            raise TokenizerError(f"there is no token {token}: ids go from 0 to {len(self._bytes) - 1}")
        return self._bytes[token]

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens`; bytes that are not UTF-8 become U+FFFD; end of text is left out."""
        return b"".join(map(self.bytes_of, tokens)).decode(errors="replace")

    def stream(self) -> ByteLevelStream:
        return ByteLevelStream(self)


class ByteLevelStream:
    """Incremental decoding: the concatenated results of `push` and `flush` equal `decode` of all tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._tokenizer.bytes_of(token))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
