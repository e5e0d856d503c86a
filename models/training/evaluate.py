"""Bits per byte of a text under a model and under n-gram baselines, all on the same tokens."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from models import checkpoint
from models.tokenizer import Tokenizer, TokenizerError
from models.training import corpus, trainer
from models.training.corpus import Corpus
from models.transformer import Transformer

_NATS_PER_BIT = math.log(2)


def with_start(texts: Sequence[str], tokenizer: Tokenizer) -> list[NDArray[np.int64]]:
    """Tokens of each of `texts` after one end-of-text token, from which the first is predicted."""
    encoded = tokenizer.encode_batch(texts)
    return [np.array([tokenizer.end_of_text, *ids], dtype=np.int64) for ids in encoded]


@torch.inference_mode()
def transformer_bits(
    model: Transformer, files: Sequence[NDArray[np.int64]], length: int, autocast: bool = False
) -> float:
    """Bits that `model` needs for all tokens of `files` but the first of each.

    Every token is counted once, in independent windows of `length`: an upper bound. `autocast` multiplies in
    bfloat16: faster, and accurate enough to monitor a training.
    """
    device = model.embedding.weight.device
    windows = [
        file[start : start + length + 1] for file in files for start in range(0, len(file) - 1, length)
    ]
    windows.sort(key=len)
    nats = 0.0
    for start in range(0, len(windows), 16):
        group = windows[start : start + 16]
        padded = np.full((len(group), len(group[-1])), -1, dtype=np.int64)
        for row, window in zip(padded, group, strict=True):
            row[: len(window)] = window
        tokens = torch.from_numpy(padded).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            logits = trainer.all_logits(model, tokens[:, :-1].clamp(min=0))
        targets = tokens[:, 1:].flatten()
        nats += F.cross_entropy(
            logits.flatten(0, 1).float(), targets, ignore_index=-1, reduction="sum"
        ).item()
    return nats / _NATS_PER_BIT


class NgramCounts:
    """Unigram and bigram counts of a training text over an alphabet of `symbols` symbols.

    The bigram is the unigram where nothing was seen and leans on it by Witten and Bell's weights otherwise:
    p(b | a) = (count(a, b) + kinds(a) p(b)) / (count(a) + kinds(a)), kinds(a) being how many different
    symbols followed a (IEEE Transactions on Information Theory 37(4), 1991, method C).
    """

    def __init__(self, files: Sequence[NDArray[np.int64]], symbols: int) -> None:
        self._symbols = symbols
        following = np.concatenate([file[1:] for file in files])
        counts = np.bincount(following, minlength=symbols) + 1.0  # add one: no symbol is impossible
        self._unigram = counts / counts.sum()
        pairs = np.concatenate([self._pairs(file) for file in files])
        self._seen, self._pair_counts = np.unique(pairs, return_counts=True)
        first = self._seen // symbols
        self._kinds = np.bincount(first, minlength=symbols)
        self._totals = np.bincount(first, weights=self._pair_counts, minlength=symbols)

    def _pairs(self, file: NDArray[np.int64]) -> NDArray[np.int64]:
        return file[:-1] * self._symbols + file[1:]

    def unigram_bits(self, files: Sequence[NDArray[np.int64]]) -> float:
        """Bits for all symbols of `files` but the first of each, from their frequencies alone."""
        return float(sum(-np.log2(self._unigram[file[1:]]).sum() for file in files))

    def bigram_bits(self, files: Sequence[NDArray[np.int64]]) -> float:
        """Bits for all symbols of `files` but the first of each, from the symbol before."""
        return float(sum(-np.log2(self._bigram(file)).sum() for file in files))

    def _bigram(self, file: NDArray[np.int64]) -> NDArray[np.float64]:
        pairs = self._pairs(file)
        before = file[:-1]
        prior = self._unigram[file[1:]]
        place = np.minimum(np.searchsorted(self._seen, pairs), len(self._seen) - 1)
        count = np.where(self._seen[place] == pairs, self._pair_counts[place], 0)
        kinds = self._kinds[before]
        total = self._totals[before]
        mixed = (count + kinds * prior) / np.maximum(total + kinds, 1)
        probability: NDArray[np.float64] = np.where(total > 0, mixed, prior)
        return probability


OBVIOUS = {"import o": "s", "def __init__(": "self"}
"""Beginnings of a line, and their obvious continuations."""
TARGET = 0.35
"""How much fewer bits per byte than the bigram of the same tokens, at least."""
BEGINNINGS = (
    "def fib(",
    "class Stack:\n    def __init__(self",
    "for i in range(",
    "if __name__ == ",
    "    def __repr__(self):\n        return ",
    "try:\n    import ",
    '    """Return the ',
    "with open(",
)


@dataclass(frozen=True, slots=True)
class Scores:
    """Bits per byte of the held-out files; `saving` is how many fewer than the bigram of the same tokens."""

    transformer: float
    bigram: float
    unigram: float
    byte_bigram: float
    saving: float


def measure(model: Transformer, tokenizer: Tokenizer, text: Corpus) -> Scores:
    """Score the held-out files of `text`; the baselines count its training files."""
    training, held_out = (with_start(part, tokenizer) for part in (text.training, text.held_out))
    tokens = NgramCounts(training, tokenizer.vocabulary)
    size = text.held_out_bytes
    byte_pairs = NgramCounts([_bytes(file) for file in text.training], 256)
    bits = transformer_bits(model, held_out, model.config.context)
    bigram = tokens.bigram_bits(held_out)
    return Scores(
        transformer=bits / size,
        bigram=bigram / size,
        unigram=tokens.unigram_bits(held_out) / size,
        byte_bigram=byte_pairs.bigram_bits([_bytes(file) for file in text.held_out]) / size,
        saving=1 - bits / bigram,
    )


def _bytes(text: str) -> NDArray[np.int64]:
    return np.frombuffer(b"\0" + text.encode(), dtype=np.uint8).astype(np.int64)


@torch.inference_mode()
def complete(model: Transformer, tokenizer: Tokenizer, prompt: str, new: int) -> str:
    """The greedy completion of `prompt` in at most `new` tokens."""
    tokens = tokenizer.encode(prompt)
    start = len(tokens)
    while len(tokens) < start + new and (len(tokens) == start or tokens[-1] != tokenizer.end_of_text):
        logits = trainer.all_logits(model, torch.tensor([tokens]))
        tokens.append(int(logits[0, -1].argmax()))
    return tokenizer.decode(tokens[start:])


def main(
    folder: Annotated[Path, typer.Option(help="Folder of the model.")] = checkpoint.TINY_FOLDER,
    samples: Annotated[bool, typer.Option(help="Show completions of some beginnings.")] = False,
) -> None:
    """Print the scores and one JSON line; exit code 1 below the targets, 2 for a broken model."""
    console = Console()
    try:
        text = corpus.read()
        model = checkpoint.build(folder, 1)
        tokenizer = Tokenizer.load(folder, model.config.vocabulary)
    except (corpus.CorpusError, checkpoint.CheckpointError, TokenizerError) as error:
        console.print(str(error), style="red", markup=False)
        sys.exit(2)
    with console.status("scoring the held-out files"):
        measured = measure(model, tokenizer, text)
        added = {prompt: complete(model, tokenizer, prompt, 4) for prompt in OBVIOUS}
    closed = all(added[prompt].startswith(expected) for prompt, expected in OBVIOUS.items())
    _show(console, measured, added)
    for beginning in BEGINNINGS if samples else ():
        console.rule()
        whole = beginning + "»" + complete(model, tokenizer, beginning, 48)
        console.print(whole, markup=False, highlight=False)
    facts = {"model_hash": checkpoint.content_hash(folder), "held_out_bytes": text.held_out_bytes}
    passed = closed and measured.saving >= TARGET
    print(json.dumps({**asdict(measured), **facts, "closes_obvious_lines": closed, "passed": passed}))
    sys.exit(0 if passed else 1)


def _show(console: Console, measured: Scores, added: dict[str, str]) -> None:
    table = Table("held-out files", "bits per byte")
    table.add_row("this model", f"{measured.transformer:.3f}")
    table.add_row("bigram of the same tokens", f"{measured.bigram:.3f}")
    table.add_row("unigram of the same tokens", f"{measured.unigram:.3f}")
    table.add_row("bigram of bytes", f"{measured.byte_bigram:.3f}")
    console.print(table)
    console.print(f"{measured.saving:.1%} fewer bits than the bigram (target: at least {TARGET:.0%})")
    for prompt, text in added.items():
        console.print(f"{prompt!r} is completed by {text!r}", markup=False)


if __name__ == "__main__":
    typer.run(main)
