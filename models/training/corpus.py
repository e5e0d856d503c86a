"""The training text: the Python standard library in two sets of files, and batches of windows of it."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.tokenizer import Tokenizer

_SKIPPED = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib-dynload", "__pycache__",
    "encodings", "pydoc_data", "turtledemo",
}  # fmt: skip
"""Third-party code, what some installations leave out, and tables that are data rather than code."""
_HELD_OUT_SHARE = 0.05


class CorpusError(RuntimeError):
    """There is no text to train on; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts of whole files in the order of their paths: a training and a held-out set."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]

    @property
    def held_out_bytes(self) -> int:
        """Length of all held-out texts, UTF-8."""
        return sum(len(text.encode()) for text in self.held_out)


def is_held_out(path: str) -> bool:
    """Whether the file at `path` (relative, with slashes) is kept out of training: by a hash of its path."""
    number = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big")
    return number / 2**64 < _HELD_OUT_SHARE


def read(root: Path | None = None) -> Corpus:
    """The standard library below `root` (default: this interpreter's), in the order of its paths.

    Raises CorpusError where no source is installed.
    """
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    training: list[str] = []
    held_out: list[str] = []
    for path, text in _files(root):
        (held_out if is_held_out(path) else training).append(text)
    if not training or not held_out:
        raise CorpusError(
            f"no Python source below {root}: install the interpreter's standard library as source"
        )
    return Corpus(tuple(training), tuple(held_out))


def _files(root: Path) -> Iterator[tuple[str, str]]:
    seen: set[bytes] = set()
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if _SKIPPED.intersection(path.parts) or path.parts[0].startswith("config-"):
            continue
        content = file.read_bytes()
        digest = hashlib.sha256(content).digest()
        if digest in seen or not content.strip():
            continue
        seen.add(digest)
        try:
            yield path.as_posix(), content.decode()
        except UnicodeDecodeError:
            continue  # a few files declare another encoding


_PIECE_CHARACTERS = 48
"""Mean length of the pieces that are encoded on their own, in characters."""
_SHARE_OF_LINES = 0.25


def pieces(text: str, random: np.random.Generator) -> list[str]:
    """`text` cut at random places into pieces of about 48 characters.

    A prompt ends anywhere, often inside what would be one token ("import o" of " os"). Encoded in pieces, the
    text has such ends, and the model learns to continue from them.
    """
    cuts = np.sort(random.integers(0, len(text) + 1, size=len(text) // _PIECE_CHARACTERS)).tolist()
    ends = zip([0, *cuts], [*cuts, len(text)], strict=True)
    return [text[start:end] for start, end in ends if start < end]


def epoch_windows(
    texts: Sequence[str], tokenizer: Tokenizer, length: int, seed: tuple[int, int]
) -> NDArray[np.int64]:
    """About all of `texts` once, shuffled, as windows [windows, length + 1].

    Each text starts after an end-of-text token. A quarter of the windows begin with an unindented line,
    as prompts do; the others lie a window apart. `seed` is (run, epoch): the same gives the same windows.
    """
    random = np.random.default_rng(seed)
    cut = [pieces(texts[index], random) for index in random.permutation(len(texts))]
    encoded = tokenizer.encode_batch([piece for text in cut for piece in ["", *text]])
    tokens = np.fromiter(
        (token for ids in encoded for token in (ids or (tokenizer.end_of_text,))), dtype=np.int64
    )
    starts = np.arange(random.integers(0, length), len(tokens) - length, length)
    lines = _line_starts(tokens[: max(0, len(tokens) - length)], tokenizer)
    if len(lines):
        chosen = random.random(len(starts)) < _SHARE_OF_LINES
        starts[chosen] = random.choice(lines, size=int(chosen.sum()))
    random.shuffle(starts)
    windows: NDArray[np.int64] = tokens[starts[:, None] + np.arange(length + 1)]
    return windows


def _line_starts(tokens: NDArray[np.int64], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Indices in `tokens` at which an unindented line begins."""
    token_bytes = [tokenizer.bytes_of(token) for token in range(tokenizer.vocabulary)]
    closing = np.array([token.endswith(b"\n") for token in token_bytes])
    closing[tokenizer.end_of_text] = True
    opening = np.array([token[:1].strip() != b"" for token in token_bytes])
    return np.flatnonzero(closing[tokens[:-1]] & opening[tokens[1:]]) + 1


def batches(
    texts: Sequence[str], tokenizer: Tokenizer, batch: int, length: int, seed: int
) -> Iterator[Tensor]:
    """Batches int64 [batch, length + 1] without end, epoch after epoch.

    Raises ValueError where the texts do not fill one batch.
    """
    for epoch in count():
        windows = epoch_windows(texts, tokenizer, length, (seed, epoch))
        usable = len(windows) // batch
        if not usable:
            raise ValueError(
                f"the text fills {len(windows)} windows of {length}, not one batch of {batch}: give more"
            )
        yield from torch.from_numpy(windows[: usable * batch]).split(batch)
